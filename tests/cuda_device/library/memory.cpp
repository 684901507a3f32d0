// Memory: that of the device is mapped lazily, and as much as it has.
#include "device.h"

#include <sys/mman.h>

#include <cstring>
#include <map>

namespace fake {
static const size_t GRAIN = 2 << 20;
struct Range {
  size_t size;
  Kind kind;
};
static std::map<uintptr_t, Range> ranges;
size_t memory_used = 400 << 20;  // of a context

Kind kind_of(const void* address) {
  Locked locked;
  auto after = ranges.upper_bound((uintptr_t)address);
  if (after == ranges.begin()) return PAGEABLE;
  auto& [start, range] = *--after;
  return (uintptr_t)address < start + range.size ? range.kind : PAGEABLE;
}

static cudaError_t take(void** address, size_t size, Kind kind) {
  Locked locked;
  size = (size + GRAIN - 1) / GRAIN * GRAIN;
  if (kind == DEVICE && memory_used + size > total_memory()) return error(cudaErrorMemoryAllocation);
  // Aligned to its grain, as torch's allocator counts on.
  auto* mapped = (char*)mmap(nullptr, size + GRAIN, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return error(cudaErrorMemoryAllocation);
  auto start = ((uintptr_t)mapped + GRAIN - 1) / GRAIN * GRAIN;
  if (auto before = start - (uintptr_t)mapped) munmap(mapped, before);
  munmap((void*)(start + size), GRAIN - (start - (uintptr_t)mapped));
  ranges[start] = {size, kind};
  if (kind == DEVICE) memory_used += size;
  *address = (void*)start;
  return cudaSuccess;
}

static void give(void* address) {
  Locked locked;
  auto found = ranges.find((uintptr_t)address);
  if (found == ranges.end()) return;
  if (found->second.kind == DEVICE) memory_used -= found->second.size;
  munmap(address, found->second.size);
  ranges.erase(found);
}

static const char* word(Kind kind) { return kind == DEVICE ? "device" : kind == PINNED ? "pinned" : "pageable"; }

static cudaError_t copy(void* to, const void* from, size_t size, cudaStream_t stream) {
  if (!size) return cudaSuccess;
  Kind source = kind_of(from), target = kind_of(to);
  auto way = std::string(word(source)) + " to " + word(target);
  if (capture_of(stream) && (source == PAGEABLE || target == PAGEABLE)) {
    refused("a copy of pageable memory");
    return error(cudaErrorStreamCaptureUnsupported);
  }
  if (!capture_of(stream)) {
    count("copies " + way);
    count("bytes " + way, (long)size);
    // CUDA waits for these: it copies by a buffer of its own.
    if (target == PAGEABLE) count("waits for copies to pageable memory");
  }
  return queue(stream, {Work::COPY, way, [=] { memmove(to, from, size); }});
}
}  // namespace fake

using namespace fake;

EXPORTED cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Locked locked;
  *total = total_memory();
  *free = *total - memory_used;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaMalloc(void** address, size_t size) {
  REFUSE_WHILE_CAPTURING("cudaMalloc");
  count("cudaMalloc");
  return take(address, size, DEVICE);
}
EXPORTED cudaError_t cudaFree(void* address) {
  REFUSE_WHILE_CAPTURING("cudaFree");
  count("cudaFree");
  return give(address), cudaSuccess;
}
EXPORTED cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
  REFUSE_WHILE_CAPTURING("cudaHostAlloc");
  count("cudaHostAlloc");
  count("bytes of cudaHostAlloc", (long)size);
  return take(address, size, PINNED);
}
#undef cudaMallocHost
EXPORTED cudaError_t cudaMallocHost(void** address, size_t size) { return cudaHostAlloc(address, size, 0); }
EXPORTED cudaError_t cudaFreeHost(void* address) {
  REFUSE_WHILE_CAPTURING("cudaFreeHost");
  return give(address), cudaSuccess;
}
EXPORTED cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return *device = host, cudaSuccess;
}
EXPORTED cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* of, const void* address) {
  memset(of, 0, sizeof *of);
  Kind kind = kind_of(address);
  of->type = kind == DEVICE   ? cudaMemoryTypeDevice
             : kind == PINNED ? cudaMemoryTypeHost
                              : cudaMemoryTypeUnregistered;
  of->device = kind == PAGEABLE ? -1 : 0;
  of->devicePointer = kind == PAGEABLE ? nullptr : (void*)address;
  of->hostPointer = kind == PINNED ? (void*)address : nullptr;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, size, stream);
}
EXPORTED cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  REFUSE_WHILE_CAPTURING("cudaMemcpy");
  count("waits of cudaMemcpy");
  return copy(to, from, size, nullptr);
}
EXPORTED cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                       size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return queue(stream, {Work::COPY, "of rows", [=] {
                          for (size_t row = 0; row < height; row++)
                            memmove((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width);
                        }});
}
EXPORTED cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  return queue(stream, {Work::FILL, "", [=] {
                          // Pages that nobody touched are zeros.
                          if (value || size < 64 << 20) memset(to, value, size);
                        }});
}
EXPORTED cudaError_t cudaMemset(void* to, int value, size_t size) {
  REFUSE_WHILE_CAPTURING("cudaMemset");
  return cudaMemsetAsync(to, value, size, nullptr);
}
