// The whole model in one launch, for many tokens. A block an SM owns rows of every matrix; what the rows give is said to
// all others in messages. A warp beside those that compute fetches the weights, which do not depend on the token: they
// keep coming while a block waits for a message, so that memory is never idle.
//
// At most IN_FLIGHT bytes are under way at a time: a burst of copies would stand in the way of the messages.
#include "pipeline.cuh"
#include "plan.cuh"
#include "said.cuh"

#define THREADS (32 * WARPS)   // that compute
#define TILES 64
#ifndef IN_FLIGHT
#define IN_FLIGHT 24576
#endif

// Compiled with STAMPS=5, block 5 notes the clock at every stage of a launch's last token.
#if defined(STAMPS)
#define STAMP() do { if (blockIdx.x == STAMPS && threadIdx.x == 0 && step == count - 1) stamps[stamp++] = clock64(); } while (0)
#else
#define STAMP()
#endif

extern __shared__ uint4 memory[];  // the ring, then what the kernel lays behind it

// Tiles in shared memory go round in a ring, in the order in which they are multiplied; each lies in one piece. Tile t of
// all that a block ever fetches is told by place t % TILES.
struct Ring {
  Arrival there[TILES];      // that it has come
  int start[TILES];          // where it begins, in bytes
  unsigned end[TILES];       // bytes that were used for this and all before it, modulo 2^32
  volatile unsigned freed;   // tiles that have been multiplied
};

struct TilesInRing {
  Ring* ring;
  unsigned first;

  __device__ __forceinline__ void wait(int count) const {
    unsigned t = first + threadIdx.x % 32;
    if (threadIdx.x % 32 < count) wait_for(&ring->there[t % TILES], t / TILES & 1);
    __syncwarp();
  }
  __device__ __forceinline__ const char* tile(int t) const { return (const char*)memory + ring->start[(first + t) % TILES]; }
  __device__ __forceinline__ uint4 load(const char* p) const { return *(const uint4*)p; }
};

extern "C" __global__ void __launch_bounds__(288, 1)
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
  __shared__ Ring ring;
  Q8Pair* x = (Q8Pair*)((char*)memory + ring_bytes);

  if (threadIdx.x < TILES) arrival_init(&ring.there[threadIdx.x]);
  if (threadIdx.x == 0) {
    ring.freed = 0;
    plan.work_out(x, ring_bytes, dim, ffn_dim, heads, kv_heads, head_dim, vocab, context);
  }
  __syncthreads();

  // ---- the warp that fetches: every tile of this block, in the order of the model, token after token ----
  if (warp == WARPS) {
    if (lane != 0) return;
    int start = 0;
    unsigned tile = 0, used = 0;
    for (int step = 0; step < count; step++) {
      const char* matrix = (const char*)matrices;
      for (int m = 0; m < 4 * layers + 1; m++) {
        Share own = plan.own[m < 4 * layers ? m % 4 : HEAD];
        if (m == 4 * layers) matrix = (const char*)head;
        const char* from = matrix + (size_t)own.first * own.bytes;
        unsigned pace = min(TILES / 2, max(1, IN_FLIGHT / own.bytes));
        for (int t = 0; t < own.count; t++, tile++, from += own.bytes, start += own.bytes) {
          if (start + own.bytes > ring_bytes) used += ring_bytes - start, start = 0;  // no room before the ring's end
          used += own.bytes;
          while (true) {
            unsigned freed = ring.freed;
            if (tile - freed < TILES && (int)(used - (freed ? ring.end[(freed - 1) % TILES] : 0)) <= ring_bytes) break;
            yield();
          }
          __threadfence_block();  // what the ring's places held has been read
          if (tile >= pace) wait_for(&ring.there[(tile - pace) % TILES], (tile - pace) / TILES & 1);
          ring.start[tile % TILES] = start, ring.end[tile % TILES] = used;
          copy_bulk((char*)memory + start, from, own.bytes, &ring.there[tile % TILES]);
        }
        matrix += (size_t)own.all * own.bytes;
      }
    }
    return;
  }

  // ---- the steps that every product is made of ----

  // `then(row, y)` for every even row of this block's tiles of a matrix: the products of two rows with x, which is
  // normed only now.
  int buffer = 0;
  unsigned multiplied = 0;  // tiles
#if defined(STAMPS)
  int stamp = 0;
#endif
  int step = 0;
  auto product = [&](Matrix which, bool normed, auto then) {
    const Share& own = plan.own[which];
    int first = 0;
    do {  // with no tile at all too: the barrier counts
      int now = min(own.at_once, own.count - first);
      if (which == HEAD) multiply<Q8_0_PAIR>(TilesInRing{&ring, multiplied}, now, own.pairs, x, partial[buffer]);
      else multiply<Q4_0_PAIR>(TilesInRing{&ring, multiplied}, now, own.pairs, x, partial[buffer]);
      STAMP();
      multiplied += now;
      barrier_of(THREADS);
      STAMP();
      if (threadIdx.x == 0) {
        __threadfence_block();
        ring.freed = multiplied;
      }
      float scale = normed ? inverse_rms(squares, dim, eps) : 1;
      for_row_pairs(partial[buffer], now * TILE_ROWS, [&](int row, float2 y) {
        then(first * TILE_ROWS + row, make_float2(y.x * scale, y.y * scale));
      });
      buffer ^= 1;
      first += own.at_once;
    } while (first < own.count);
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
    barrier_of(THREADS);

    // Keys and values are far away: this block's of a layer are asked for while the layer before is at work.
    Unit mine(blockIdx.x, heads, kv_heads);
    auto bring = [&](int layer) {
      int at = mine.split * span + threadIdx.x;
      if (layer == layers || mine.split >= splits || threadIdx.x >= span || at >= now) return;
      size_t here = (((size_t)layer * context + at) * kv_heads + mine.kv_head) * head_dim;
      for (int d = 0; d < head_dim; d += 64) prefetch(keys + here + d), prefetch(values + here + d);
    };
    bring(0);

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
        barrier_of(THREADS);
        for (int i = threadIdx.x; i < in_bundle * head_dim / 2; i += THREADS) {
          int h = i / (head_dim / 2), d = i % (head_dim / 2) * 2;
          float2 soft, mean = plan.meeting.meet(h, d, &soft);
          unsigned* to = said + (splits == 1 ? plan.attended_at : plan.parts_at + split * plan.attended_words);
          say(to + ((first_head + h) * head_dim + d) / 2, pack_halves(mean.x, mean.y));
          if (d == 0 && splits > 1) say((uint2*)(said + plan.softmax_at) + split * heads + first_head + h, as_words(soft));
        }
        if (Unit(unit.number + blocks, heads, kv_heads).split < splits) barrier_of(THREADS);  // before the next leaves its own there
      }
      bring(layer + 1);
      STAMP();

      // the poison of the next token's messages
      for (int i = blockIdx.x * THREADS + threadIdx.x; i < plan.layer_words; i += blocks * THREADS) say(poison + i, NOT_YET);

      // where there are several splits, they meet: a block a head, its warps take splits in turn
      if (splits > 1)
        for (int head = blocks - 1 - blockIdx.x; head < heads; head += blocks) {
          merge_splits(said + plan.parts_at, (const uint2*)(said + plan.softmax_at), splits, head, heads, head_dim, met, met_softmax,
                       said + plan.attended_at, [&] { barrier_of(THREADS); });
          if (head + blocks < heads) barrier_of(THREADS);
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
    barrier_of(THREADS);

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
    barrier_of(THREADS);
    token = next_token;
    STAMP();
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (advance) *position = start + count;
    *turn = first_turn + count;
  }
}
