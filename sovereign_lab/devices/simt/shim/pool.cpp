// The worker threads of the SIMT device: a list of launches in, spread by blocks over the workers.
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

struct dim { uint32_t x, y, z; };

// As in runtime.h.
struct Launch {
  dim grid, block;
  void** args;
  uint32_t dynamic_shared_bytes;
  uint32_t lane_order;
  char* stacks;
  size_t stack_stride;
  char* error;
  uint32_t error_bytes;
};

typedef int (*Run)(Launch*, uint64_t first, uint64_t last, int cooperative);

// One launch of a recorded list, as Python fills it in. run[w] is the kernel in worker w's copy of its library.
struct Step {
  Run* run;
  void** args;
  dim grid, block;
  uint32_t dynamic_shared_bytes;
  uint32_t lane_order;
  uint32_t one_worker;    // a cooperative launch, or a kernel with __device__ variables
  uint32_t cooperative;
};

constexpr size_t kErrorBytes = 8192;
// Not a multiple of 4096: stacks at the same offset of a page would share one set of the L1 cache.
constexpr size_t kStackStride = 32768 + 192;
constexpr uint32_t kThreads = 1024;

struct Pool {
  int workers;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable wake, idle;
  uint64_t job = 0;
  int busy = 0;
  bool quit = false;

  Step* steps = nullptr;
  int count = 0;
  std::atomic<int> stop{0};
  int failed_step = -1;
  char error[kErrorBytes];
  std::vector<std::vector<char>> errors;
  std::vector<char*> stacks;
  std::vector<uint64_t> stack_bytes;
  std::vector<std::atomic<uint64_t>> next_block;   // one counter a step
  std::atomic<int> arrived{0};
  std::atomic<uint64_t> generation{0};
};

// All workers finish a step before any starts the next: a short spin, then give the core away.
static void meet(Pool* p) {
  uint64_t g = p->generation.load(std::memory_order_acquire);
  if (p->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == p->workers) {
    p->arrived.store(0, std::memory_order_relaxed);
    p->generation.store(g + 1, std::memory_order_release);
    return;
  }
  for (int spin = 0; p->generation.load(std::memory_order_acquire) == g; spin++)
    if (spin > 2000) sched_yield();
}

static char* stacks_for(Pool* p, int worker, uint64_t fibers) {
  uint64_t bytes = (fibers + 1) * kStackStride;
  if (bytes > p->stack_bytes[worker]) {
    if (p->stacks[worker]) munmap(p->stacks[worker], p->stack_bytes[worker]);
    void* m = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    p->stacks[worker] = m == MAP_FAILED ? nullptr : (char*)m;
    p->stack_bytes[worker] = m == MAP_FAILED ? 0 : bytes;
  }
  return p->stacks[worker];
}

static void run_step(Pool* p, int worker, int index) {
  Step& s = p->steps[index];
  if (s.one_worker && worker) return;
  uint64_t blocks = (uint64_t)s.grid.x * s.grid.y * s.grid.z;
  uint64_t threads = (uint64_t)s.block.x * s.block.y * s.block.z;
  uint64_t fibers = s.cooperative ? blocks * threads : kThreads;
  char* stacks = stacks_for(p, worker, fibers);
  char* error = p->errors[worker].data();
  if (!stacks) strcpy(error, "not enough memory for the stacks of a cooperative launch of this size");
  Launch launch = {s.grid, s.block, s.args, s.dynamic_shared_bytes, s.lane_order, stacks, kStackStride, error,
                   (uint32_t)kErrorBytes};
  int failed = !stacks;
  if (!failed && s.one_worker) {
    failed = s.run[worker](&launch, 0, blocks, (int)s.cooperative);
  } else if (!failed) {
    uint64_t chunk = blocks / (8 * (uint64_t)p->workers);
    if (chunk == 0) chunk = 1;
    while (!failed && !p->stop.load(std::memory_order_relaxed)) {
      uint64_t first = p->next_block[index].fetch_add(chunk, std::memory_order_relaxed);
      if (first >= blocks) break;
      failed = s.run[worker](&launch, first, first + chunk < blocks ? first + chunk : blocks, 0);
    }
  }
  if (failed) {
    std::lock_guard<std::mutex> lock(p->mutex);
    if (p->failed_step < 0) {
      p->failed_step = index;
      memcpy(p->error, error, kErrorBytes);
    }
    p->stop.store(1);
  }
}

static void work(Pool* p, int worker) {
  uint64_t done = 0;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(p->mutex);
      p->wake.wait(lock, [&] { return p->quit || p->job != done; });
      if (p->quit) return;
      done = p->job;
    }
    p->errors[worker][0] = 0;
    for (int i = 0; i < p->count; i++) {
      if (!p->stop.load()) run_step(p, worker, i);
      if (p->workers > 1) meet(p);
    }
    std::lock_guard<std::mutex> lock(p->mutex);
    if (--p->busy == 0) p->idle.notify_one();
  }
}

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Pool* pool_create(int workers) {
  Pool* p = new Pool;
  p->workers = workers;
  p->errors.assign(workers, std::vector<char>(kErrorBytes, 0));
  p->stacks.assign(workers, nullptr);
  p->stack_bytes.assign(workers, 0);
  for (int w = 0; w < workers; w++) p->threads.emplace_back(work, p, w);
  return p;
}

EXPORT void pool_destroy(Pool* p) {
  {
    std::lock_guard<std::mutex> lock(p->mutex);
    p->quit = true;
  }
  p->wake.notify_all();
  for (auto& t : p->threads) t.join();
  for (int w = 0; w < p->workers; w++)
    if (p->stacks[w]) munmap(p->stacks[w], p->stack_bytes[w]);
  delete p;
}

// Run the steps in order. -1, or the index of the step that failed, with its message in `error`.
EXPORT int pool_run(Pool* p, Step* steps, int count, char* error, int error_bytes) {
  std::vector<std::atomic<uint64_t>> counters(count);
  for (auto& c : counters) c.store(0);
  std::unique_lock<std::mutex> lock(p->mutex);
  p->next_block.swap(counters);
  p->steps = steps;
  p->count = count;
  p->failed_step = -1;
  p->stop.store(0);
  p->busy = p->workers;
  p->job++;
  p->wake.notify_all();
  p->idle.wait(lock, [&] { return p->busy == 0; });
  if (p->failed_step >= 0) strncpy(error, p->error, error_bytes - 1);
  return p->failed_step;
}
