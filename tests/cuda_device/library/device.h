// A CUDA device that is not there, for tests: what its files share.
//
// It stands in for CUDA's runtime, driver and cuBLAS under the real torch and Triton. Memory is the host's,
// mapped when it is first touched. Work is counted and done at once, in the order of the calls: copies and fills
// are done, kernels are not, but for those of `kernels.cpp` that make answers. While a stream captures, the rules
// of CUDA's programming guide hold: work is recorded, a call that might wait spoils the capture, and every call
// that is refused is noted.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace fake {

extern std::recursive_mutex mutex;
struct Locked : std::lock_guard<std::recursive_mutex> {
  Locked() : lock_guard(mutex) {}
};

// Adds to a counter, which the tests read by its name.
void count(const std::string& what, long amount = 1);
// Notes a call that CUDA refuses; tests want none.
void refused(const std::string& what);

// The properties of the device.
int capability();
size_t total_memory();
int attribute(int of);
extern const char* const NAME;

// Memory.
enum Kind { PAGEABLE, DEVICE, PINNED };
Kind kind_of(const void* address);
extern size_t memory_used;

// Work on a stream.
struct Work {
  enum Of { KERNEL, COPY, FILL } of;
  std::string name;
  std::function<void()> done;  // empty: nothing is computed
};
cudaError_t queue(cudaStream_t stream, Work work);
cudaError_t error(cudaError_t code);  // what cudaGetLastError gives on this thread
// Whether a call that might wait for the device, or allocate, is refused now: somebody captures.
bool spoils_capture(const char* call);

struct Capture {
  unsigned long long id;
  int mode;
  bool spoilt = false;
  cudaStream_t origin;
  std::vector<Work> works;
};
Capture* capture_of(cudaStream_t stream);

}  // namespace fake

#define REFUSE_WHILE_CAPTURING(call) \
  if (fake::spoils_capture(call)) return fake::error(cudaErrorStreamCaptureUnsupported)
