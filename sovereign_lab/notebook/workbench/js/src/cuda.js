// The words that CUDA adds to C++, coloured on top of CodeMirror's C++ mode, in the lines that are in view.
import { syntaxTree } from "@codemirror/language";
import { Decoration, MatchDecorator, ViewPlugin } from "@codemirror/view";

const QUALIFIERS = "__global__|__device__|__host__|__shared__|__constant__|__managed__|__launch_bounds__|__restrict__|__forceinline__|__noinline__";
const PLACES = "threadIdx|blockIdx|blockDim|gridDim|warpSize";
const TYPES = "(?:char|uchar|short|ushort|int|uint|long|ulong|longlong|ulonglong|float|double)[1-4]|dim3|half2?|__half2?|__nv_bfloat16|u?int(?:8|16|32|64)_t|size_t|block_q4_0";
const CALLS = "__shfl(?:_up|_down|_xor)?_sync|__(?:any|all|ballot)_sync|__reduce_(?:add|min|max|and|or|xor)_sync|__match_(?:any|all)_sync|__activemask|__syncthreads(?:_and|_or|_count)?|__syncwarp|__threadfence(?:_block|_system)?|atomic(?:Add|Sub|Exch|Min|Max|Inc|Dec|CAS|And|Or|Xor)|__ld(?:g|cg|ca|cs|lu|cv)|__st(?:wb|cg|cs|wt)|__[a-z]+2[a-z]+(?:_r[nzud])?|__f[a-z]+_r[nzud]|__dp[24]a|__popc(?:ll)?|__clz(?:ll)?|__ffs(?:ll)?|__brev(?:ll)?|__expf|__logf|__sinf|__cosf|__powf|rsqrtf?|fmaf?|fmaxf|fminf|expf|sqrtf|tanhf";

const KINDS = [
  [QUALIFIERS, Decoration.mark({ class: "slw-cuda-qualifier" })],
  [PLACES, Decoration.mark({ class: "slw-cuda-place" })],
  [TYPES, Decoration.mark({ class: "slw-cuda-type" })],
  [CALLS, Decoration.mark({ class: "slw-cuda-call" })],
];

const matcher = new MatchDecorator({
  regexp: new RegExp("\\b(?:" + KINDS.map(([words]) => `(${words})`).join("|") + ")\\b", "g"),
  decorate(add, from, to, match, view) {
    const node = syntaxTree(view.state).resolveInner(from, 1);
    if (/Comment|String|Char/.test(node.name)) return;
    add(from, to, KINDS[match.slice(1).findIndex(Boolean)][1]);
  },
});

export const cudaWords = ViewPlugin.fromClass(
  class {
    constructor(view) {
      this.tree = syntaxTree(view.state);
      this.decorations = matcher.createDeco(view);
    }
    update(update) {
      // A word may turn into a comment far from what was typed, and so the whole view is looked at when the tree is new.
      const tree = syntaxTree(update.state);
      this.decorations = tree === this.tree ? matcher.updateDeco(update, this.decorations) : matcher.createDeco(update.view);
      this.tree = tree;
    }
  },
  { decorations: (plugin) => plugin.decorations },
);
