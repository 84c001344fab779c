// The whole model in one launch, for many tokens. A block an SM owns rows of every matrix, and what the rows give is said to
// all others in messages: words in poisoned memory, each its own flag. A block goes on as soon as it has what it needs.
//
// While token t runs, the messages of t + 1 are poisoned. The best rows of all blocks are the last message of a token:
// whoever has them knows that every block is done with it, and with everything that it wrote.
#include "said.cuh"

#define THREADS (32 * WARPS)
#define LONG_SPLIT (SPLIT / 2) // positions of a split where there are several

#if defined(STAMPS)
#define STAMP() do { if (blockIdx.x == STAMPS && threadIdx.x == 0 && step == count - 1) stamps[stamp++] = clock64(); } while (0)
#else
#define STAMP()
#endif

extern __shared__ uint4 memory[];

// The tiles of a matrix that this block owns.
struct Share {
  int first, count, all;
  int bytes;               // of a tile
  int pairs;               // of a row

  __device__ void of(int rows, int columns, int pair_size) {
    all = (rows + TILE_ROWS - 1) / TILE_ROWS;
    first = all * (int)blockIdx.x / (int)gridDim.x;
    count = all * ((int)blockIdx.x + 1) / (int)gridDim.x - first;
    pairs = (columns / 32 + 1) / 2;
    bytes = pairs * pair_size * 16;
  }
};
enum Matrix { QKV, O, GATE_UP, DOWN, HEAD };  // gate and up: row by row in turn

// What a block of attention takes: a split of the positions, and a bundle of query heads that share a KV head.
struct Unit {
  int number, split, kv_head, first_head, heads;

  __device__ __forceinline__ Unit(int number, int all_heads, int kv_heads) : number(number) {
    int group = all_heads / kv_heads, bundles_per_kv = (group + BUNDLE - 1) / BUNDLE, bundle = number % (kv_heads * bundles_per_kv);
    split = number / (kv_heads * bundles_per_kv);
    kv_head = bundle / bundles_per_kv;
    first_head = kv_head * group + bundle % bundles_per_kv * BUNDLE;
    heads = min(BUNDLE, (kv_head + 1) * group - first_head);
  }
};

// What is worked out once, in shared memory: in registers it would take the room that the products need.
struct Plan {
  Share own[5];                   // by Matrix
  int part, d;                    // the head, and the dimension in it, of this block's first row of wq, wk, wv
  int attended_words, max_splits, layer_words;
  int parts_at, softmax_at, attended_at, middle_at, hidden_at, end_at;  // where a layer's messages lie, in words
  SplitMeeting meeting;
  float* residual;                // [this block's rows]
};

extern "C" __global__ void __launch_bounds__(256, 1)
persistent(const uint4* matrices,   // [layers, ...]: tiles of wq, wk, wv together, wo, gate and up by turns, w_down
           const uint4* head,       // tiles in Q8_0 [vocab / 4]
           const float* norms,      // [2 * layers + 1, dim]: attention, feed forward, ...; the last before the head
           const float* embedding,  // [vocab, dim]
           const float* inv_freq,   // [rope_dim / 2]
           KV* keys,                // [layers, context, kv_heads, head_dim]
           KV* values,
           unsigned* messages,      // [2, layers, words], poisoned
           unsigned* bests,         // [3, blocks, 2], poisoned
           float* logits,           // [vocab]
           int* best,               // [1]
           int* tokens,             // [context + 1]
           int* argmaxes,           // [context + 1]
           int* position,           // [1]
           const int* given,        // [1]
           int* turn,               // [1], tokens since the messages were poisoned
           long long* stamps,
           int layers, int dim, int ffn_dim, int heads, int kv_heads, int head_dim, int rope_dim, int vocab, int context,
           float eps, int count, int advance, int ring_bytes) {
  int lane = lane_index(), warp = warp_index(), blocks = gridDim.x;

  __shared__ Plan plan;
  __shared__ Partial partial[2][MOST_TILES * TILE_ROWS];
  __shared__ float squares[WARPS];
  __shared__ float2 cos_sin[64];
  __shared__ uint2 warp_bests[WARPS];
  __shared__ int next_token;
  __shared__ float2 met[WARPS][64], met_softmax[WARPS];
  Q8Pair* x = (Q8Pair*)memory;

  if (threadIdx.x == 0) {
    Plan& p = plan;
    int qkv_rows = (heads + 2 * kv_heads) * head_dim;
    p.own[QKV].of(qkv_rows, dim, Q4_0_PAIR);
    p.own[O].of(dim, heads * head_dim, Q4_0_PAIR);
    p.own[GATE_UP].of(2 * ffn_dim, dim, Q4_0_PAIR);
    p.own[DOWN].of(dim, ffn_dim, Q4_0_PAIR);
    p.own[HEAD].of(vocab, dim, Q8_0_PAIR);
    p.part = p.own[QKV].first * TILE_ROWS / head_dim, p.d = p.own[QKV].first * TILE_ROWS % head_dim;
    p.attended_words = heads * head_dim / 2, p.max_splits = (context + LONG_SPLIT - 1) / LONG_SPLIT;
    p.parts_at = qkv_rows / 2;
    p.softmax_at = p.parts_at + p.max_splits * p.attended_words;
    p.attended_at = p.softmax_at + p.max_splits * heads * 2;
    p.middle_at = p.attended_at + p.attended_words;
    p.hidden_at = p.middle_at + dim;
    p.end_at = p.hidden_at + ffn_dim;
    p.layer_words = (p.end_at + dim + 3) / 4 * 4;  // so that each layer begins at a multiple of 16 bytes
    p.meeting.out = (unsigned*)(x + max(max(p.own[QKV].pairs, p.own[O].pairs), p.own[DOWN].pairs));
    p.meeting.softmax = (float2*)(p.meeting.out + SPLIT_WARPS * BUNDLE * head_dim / 2);
    p.meeting.head_dim = head_dim;
    p.residual = (float*)(p.meeting.softmax + SPLIT_WARPS * BUNDLE);
  }
  __syncthreads();

  // ---- the steps that every product is made of ----

  // `then(row, y)` for every even row of this block's tiles of a matrix: the products of two rows with x, which is
  // normed only now.
  int buffer = 0;
#if defined(STAMPS)
  int stamp = 0;
#endif
  int step = 0;
  const uint4* matrix = nullptr;
  auto product = [&](Matrix which, bool normed, auto then) {
    const Share& own = plan.own[which];
    int first = 0;
    do {  // with no tile at all too: the barrier counts
      int now = min(MOST_TILES, own.count - first), row = (own.first + first) * TILE_ROWS;
      if (which == HEAD) multiply<Q8_0_PAIR>(TilesInMemory(head, row, own.bytes / 16), now, own.pairs, x, partial[buffer]);
      else multiply<Q4_0_PAIR>(TilesInMemory(matrix, row, own.bytes / 16), now, own.pairs, x, partial[buffer]);
      STAMP();
      __syncthreads();
      STAMP();
      float scale = normed ? inverse_rms(squares, dim, eps) : 1;
      for_row_pairs(partial[buffer], now * TILE_ROWS, [&](int row, float2 y) {
        then(first * TILE_ROWS + row, make_float2(y.x * scale, y.y * scale));
      });
      buffer ^= 1;
      first += MOST_TILES;
    } while (first < own.count);
    matrix += (size_t)own.all * (own.bytes / 16);
  };

  // ---- token after token ----
  int start = *position, first_turn = *turn, until = *given, token = tokens[start];

  for (; step < count; step++) {
    int now = start + step, odd = (first_turn + step) & 1;
    int span = now < SPLIT ? SPLIT : LONG_SPLIT, splits = now / span + 1;  // of attention: positions of each, and how many
    unsigned* said = messages + (size_t)odd * layers * plan.layer_words;
    unsigned* poison = messages + (size_t)(1 - odd) * layers * plan.layer_words;
    const float* stream = embedding + (size_t)token * dim;  // the residual stream, of which this block keeps its own rows
    STAMP();
    for (int r = threadIdx.x; r < plan.own[O].count * TILE_ROWS; r += THREADS) plan.residual[r] = stream[plan.own[O].first * TILE_ROWS + r];
    for (int i = threadIdx.x; i < rope_dim / 2; i += THREADS) sincosf(now * inv_freq[i], &cos_sin[i].y, &cos_sin[i].x);
    // Two tokens ago everyone has read the bests that this is the poison of; the last token's someone may be reading still.
    uint2 *all_bests = (uint2*)bests + (first_turn + step) % 3 * blocks, *next_bests = (uint2*)bests + (first_turn + step + 1) % 3 * blocks;
    if (threadIdx.x == 0) say(next_bests + blockIdx.x, make_uint2(NOT_YET, NOT_YET));
    __syncthreads();

    // Keys and values are far away: this block's of a layer are asked for while the layer before is at work.
    Unit mine(blockIdx.x, heads, kv_heads);
    auto bring = [&](int layer) {
      int at = mine.split * span + threadIdx.x;
      if (layer == layers || mine.split >= splits || threadIdx.x >= span || at >= now) return;
      size_t here = (((size_t)layer * context + at) * kv_heads + mine.kv_head) * head_dim;
      for (int d = 0; d < head_dim; d += 64) prefetch(keys + here + d), prefetch(values + here + d);
    };
    bring(0);

    matrix = matrices;
    for (int layer = 0; layer < layers; layer++) {
      const float* norm = norms + (size_t)2 * layer * dim;

      // queries, keys and values: rotated by the position, and remembered
      take<4>(stream, norm, dim, x, squares);
      STAMP();
      product(QKV, true, [&](int row, float2 y) {
        int d = plan.d + row, part = plan.part;
        while (d >= head_dim) d -= head_dim, part++;
        if (part < heads + kv_heads && d < rope_dim) {
          float2 turn_by = cos_sin[d / 2];
          y = make_float2(y.x * turn_by.x - y.y * turn_by.y, y.x * turn_by.y + y.y * turn_by.x);
        }
        say(said + (plan.own[QKV].first * TILE_ROWS + row) / 2, pack_halves(y.x, y.y));
        if (part >= heads) {
          bool key = part < heads + kv_heads;
          KV* cache = (key ? keys : values) + (((size_t)layer * context + now) * kv_heads + part - heads - (key ? 0 : kv_heads)) * head_dim + d;
          store(cache, y.x);
          store(cache + 1, y.y);
        }
      });
      STAMP();

      // attention: a block a split of the positions and a bundle of heads that share keys
      for (Unit unit = mine; unit.split < splits; unit = Unit(unit.number + blocks, heads, kv_heads)) {
        int split = unit.split, first_head = unit.first_head, in_bundle = unit.heads;
        int first = split * span + warp * (span / WARPS), last = min(first + span / WARPS, now + 1);
        if (first < last)
          attend(said, keys + (size_t)layer * context * kv_heads * head_dim, values + (size_t)layer * context * kv_heads * head_dim,
                 heads, kv_heads, head_dim, first_head, in_bundle, first, last, now, plan.meeting);
        else plan.meeting.leave_nothing();
        __syncthreads();
        for (int i = threadIdx.x; i < in_bundle * head_dim / 2; i += THREADS) {
          int h = i / (head_dim / 2), d = i % (head_dim / 2) * 2;
          float2 soft, mean = plan.meeting.meet(h, d, &soft);
          unsigned* to = said + (splits == 1 ? plan.attended_at : plan.parts_at + split * plan.attended_words);
          say(to + ((first_head + h) * head_dim + d) / 2, pack_halves(mean.x, mean.y));
          if (d == 0 && splits > 1) say((uint2*)(said + plan.softmax_at) + split * heads + first_head + h, as_words(soft));
        }
        if (Unit(unit.number + blocks, heads, kv_heads).split < splits) __syncthreads();  // before the next leaves its own there
      }
      bring(layer + 1);
      STAMP();

      // the poison of the next token's messages
      for (int i = blockIdx.x * THREADS + threadIdx.x; i < plan.layer_words; i += blocks * THREADS) say(poison + i, NOT_YET);

      // where there are several splits, they meet: a block a head, its warps take splits in turn
      if (splits > 1)
        for (int head = blocks - 1 - blockIdx.x; head < heads; head += blocks) {
          const unsigned* parts = said + plan.parts_at;
          const uint2* softmax = (const uint2*)(said + plan.softmax_at);
          float2 soft = make_float2(-INFINITY, 0);
          for (int i = lane; i < (head_dim + 63) / 64 * 32; i += 32) {
            float2 v = make_float2(0, 0);
            soft = make_float2(-INFINITY, 0);
            for (int first = warp; first < splits; first += 4 * WARPS) {  // all that is said of four splits is under way together
              uint2 theirs[4];
              unsigned words[4];
#pragma unroll
              for (int k = 0; k < 4; k++) {
                bool wanted = first + k * WARPS < splits && i < head_dim / 2;
                theirs[k] = wanted ? make_uint2(NOT_YET, NOT_YET) : make_uint2(0, 0);
                words[k] = wanted ? peek(parts + ((first + k * WARPS) * heads + head) * head_dim / 2 + i) : 0;
              }
              await_all(theirs, [&](int k) { return softmax + (first + k * WARPS) * heads + head; });
              await_all(words, [&](int k) { return parts + ((first + k * WARPS) * heads + head) * head_dim / 2 + i; });
#pragma unroll
              for (int k = 0; k < 4; k++) {
                if (first + k * WARPS >= splits) break;
                float2 its = as_floats(theirs[k]), value = as_floats(words[k]);
                float largest = fmaxf(soft.x, its.x), before = exp2f(soft.x - largest), weight = its.y * exp2f(its.x - largest);
                v = make_float2(v.x * before + value.x * weight, v.y * before + value.y * weight);
                soft = make_float2(largest, soft.y * before + weight);
              }
            }
            if (i < head_dim / 2) met[warp][i] = v;
          }
          if (lane == 0) met_softmax[warp] = soft;
          __syncthreads();
          for (int i = threadIdx.x; i < head_dim / 2; i += THREADS) {
            float largest = -INFINITY, sum = 0;
            float2 v = make_float2(0, 0);
            for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, met_softmax[w].x);
            for (int w = 0; w < WARPS; w++) {
              float correction = exp2f(met_softmax[w].x - largest);
              sum += met_softmax[w].y * correction;
              v = make_float2(v.x + met[w][i].x * correction, v.y + met[w][i].y * correction);
            }
            say(said + plan.attended_at + head * head_dim / 2 + i, pack_halves(__fdividef(v.x, sum), __fdividef(v.y, sum)));
          }
          if (head + blocks < heads) __syncthreads();
        }

      // back into the residual stream
      take_halves<4>(said + plan.attended_at, heads * head_dim, x);
      STAMP();
      product(O, false, [&](int row, float2 y) {
        float2* stays = (float2*)(plan.residual + row);
        *stays = y = make_float2(stays->x + y.x, stays->y + y.y);
        say((uint2*)(said + plan.middle_at + plan.own[O].first * TILE_ROWS + row), as_words(y));
      });
      STAMP();

      // feed forward: silu(gate) * up
      take<4>((const float*)(said + plan.middle_at), norm + dim, dim, x, squares);
      STAMP();
      product(GATE_UP, true, [&](int row, float2 y) {
        say(said + plan.hidden_at + (plan.own[GATE_UP].first * TILE_ROWS + row) / 2, __float_as_uint(silu(y.x) * y.y));
      });
      STAMP();

      // and back
      take<12>((const float*)(said + plan.hidden_at), nullptr, ffn_dim, x, squares);
      STAMP();
      product(DOWN, false, [&](int row, float2 y) {
        float2* stays = (float2*)(plan.residual + row);
        *stays = y = make_float2(stays->x + y.x, stays->y + y.y);
        say((uint2*)(said + plan.end_at + plan.own[O].first * TILE_ROWS + row), as_words(y));
      });
      STAMP();
      stream = (const float*)(said + plan.end_at);
      said += plan.layer_words, poison += plan.layer_words;
    }

    // the head, and this block's best row
    take<4>(stream, norms + (size_t)2 * layers * dim, dim, x, squares);
    uint2 top = make_uint2(0, 0x7fffffff);
    product(HEAD, true, [&](int row, float2 y) {
      int r = plan.own[HEAD].first * TILE_ROWS + row;
      for (int i = 0; i < 2; i++) {
        float logit = i ? y.y : y.x;
        if (r + i < vocab) logits[r + i] = logit, top = better(top, ranked(logit, r + i));
      }
    });
    for (int mask = 16; mask > 0; mask /= 2)
      top = better(top, make_uint2(__shfl_xor_sync(FULL_WARP, top.x, mask), __shfl_xor_sync(FULL_WARP, top.y, mask)));
    if (lane == 0) warp_bests[warp] = top;
    STAMP();
    __syncthreads();

    // the best of all blocks; whoever has it knows that every block is done with this token, and what it wrote
    if (warp == 0) {
      if (lane == 0) {
        for (int w = 1; w < WARPS; w++) top = better(top, warp_bests[w]);
        __threadfence();
        say(all_bests + blockIdx.x, top);
      }
      top = make_uint2(0, 0x7fffffff);
      for (int b = lane; b < blocks; b += 32) top = better(top, await((const uint2*)all_bests + b));
      __threadfence();
      __syncwarp();
      for (int mask = 16; mask > 0; mask /= 2)
        top = better(top, make_uint2(__shfl_xor_sync(FULL_WARP, top.x, mask), __shfl_xor_sync(FULL_WARP, top.y, mask)));
      if (lane == 0) {
        bool chosen = now + 1 >= until;
        next_token = chosen ? (int)top.y : tokens[now + 1];
        if (blockIdx.x == 0) {
          *best = (int)top.y;
          if (advance && chosen) tokens[now + 1] = argmaxes[now + 1] = (int)top.y;
        }
      }
    }
    __syncthreads();
    token = next_token;
    STAMP();
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (advance) *position = start + count;
    *turn = first_turn + count;
  }
}
