// The whole model in one launch, for many tokens. A block an SM owns rows of every matrix, and what the rows give is said to
// all others in messages: words in poisoned memory, each its own flag. A block goes on as soon as it has what it needs.
//
// While token t runs, the messages of t + 1 are poisoned. The best rows of all blocks are the last message of a token:
// whoever has them knows that every block is done with it, and with everything that it wrote.
#include "plan.cuh"
#include "said.cuh"

#define THREADS (32 * WARPS)

// Compiled with STAMPS=5, block 5 notes the clock at every stage of a launch's last token.
#if defined(STAMPS)
#define STAMP() do { if (blockIdx.x == STAMPS && threadIdx.x == 0 && step == count - 1) stamps[stamp++] = clock64(); } while (0)
#else
#define STAMP()
#endif

extern __shared__ uint4 memory[];

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

  if (threadIdx.x == 0) plan.work_out(x, 0, dim, ffn_dim, heads, kv_heads, head_dim, vocab, context);
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
    for (int i = threadIdx.x; i < rope_dim / 2; i += THREADS) {
      float sine, cosine;
      sincosf(now * inv_freq[i], &sine, &cosine);
      cos_sin[i] = make_float2(cosine, sine);
    }
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
          merge_splits(said + plan.parts_at, (const uint2*)(said + plan.softmax_at), splits, head, heads, head_dim, met, met_softmax,
                       said + plan.attended_at, [&] { __syncthreads(); });
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
