// How the persistent kernels share a model out: what a block owns of each matrix, what it takes of attention, and where the
// messages of a layer lie.
#pragma once
#include "split_attention.cuh"
#include "tiles.cuh"

#define LONG_SPLIT (SPLIT / 2)  // positions of a split of attention where there are several

// The tiles of a matrix that this block owns.
struct Share {
  int first, count, all;
  int bytes;               // of a tile
  int pairs, at_once;      // of a row; tiles between two barriers

  __device__ void of(int rows, int columns, int pair_size, int ring_bytes) {
    all = (rows + TILE_ROWS - 1) / TILE_ROWS;
    first = all * (int)blockIdx.x / (int)gridDim.x;
    count = all * ((int)blockIdx.x + 1) / (int)gridDim.x - first;
    pairs = (columns / 32 + 1) / 2;
    bytes = pairs * pair_size * 16;
    bool all_fit = ring_bytes == 0 || count * bytes <= ring_bytes / 3 * 2;  // else some, while others come
    at_once = all_fit ? MOST_TILES : min(MOST_TILES, max(4, ring_bytes / 8 * 3 / bytes / 4 * 4));
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

  // `x`: shared memory for the vector that is multiplied, and behind it for the rest. `ring_bytes`: of the ring of tiles, 0
  // where there is none.
  __device__ void work_out(Q8Pair* x, int ring_bytes, int dim, int ffn_dim, int heads, int kv_heads, int head_dim, int vocab, int context) {
    int qkv_rows = (heads + 2 * kv_heads) * head_dim;
    own[QKV].of(qkv_rows, dim, Q4_0_PAIR, ring_bytes);
    own[O].of(dim, heads * head_dim, Q4_0_PAIR, ring_bytes);
    own[GATE_UP].of(2 * ffn_dim, dim, Q4_0_PAIR, ring_bytes);
    own[DOWN].of(dim, ffn_dim, Q4_0_PAIR, ring_bytes);
    own[HEAD].of(vocab, dim, Q8_0_PAIR, ring_bytes);
    part = own[QKV].first * TILE_ROWS / head_dim, d = own[QKV].first * TILE_ROWS % head_dim;
    attended_words = heads * head_dim / 2, max_splits = (context + LONG_SPLIT - 1) / LONG_SPLIT;
    parts_at = qkv_rows / 2;
    softmax_at = parts_at + max_splits * attended_words;
    attended_at = softmax_at + max_splits * heads * 2;
    middle_at = attended_at + attended_words;
    hidden_at = middle_at + dim;
    end_at = hidden_at + ffn_dim;
    layer_words = (end_at + dim + 3) / 4 * 4;  // so that each layer begins at a multiple of 16 bytes
    meeting.out = (unsigned*)(x + max(max(own[QKV].pairs, own[O].pairs), own[DOWN].pairs));
    meeting.softmax = (float2*)(meeting.out + SPLIT_WARPS * BUNDLE * head_dim / 2);
    meeting.head_dim = head_dim;
    residual = (float*)(meeting.softmax + SPLIT_WARPS * BUNDLE);
  }
};
