// What the device says of itself: an H100's figures, or another capability's.
#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fake {
const char* const NAME = "H100 that is not there";

static double setting(const char* name, double otherwise) {
  const char* given = getenv(name);
  return given ? atof(given) : otherwise;
}

// 90 is compute capability 9.0.
int capability() { return (int)setting("FAKE_CUDA_CAPABILITY", 90); }
size_t total_memory() { return (size_t)(setting("FAKE_CUDA_GIB", 79.6) * (1ull << 30)); }

static void describe(cudaDeviceProp* device) {
  memset(device, 0, sizeof *device);
  snprintf(device->name, sizeof device->name, "%s", NAME);
  memset(device->uuid.bytes, 7, sizeof device->uuid.bytes);
  device->totalGlobalMem = total_memory();
  device->major = capability() / 10;
  device->minor = capability() % 10;
  device->multiProcessorCount = 132;
  device->warpSize = 32;
  device->maxThreadsPerBlock = device->maxThreadsDim[0] = device->maxThreadsDim[1] = 1024;
  device->maxThreadsDim[2] = 64;
  device->maxThreadsPerMultiProcessor = 2048;
  device->maxBlocksPerMultiProcessor = 32;
  device->maxGridSize[0] = 2147483647;
  device->maxGridSize[1] = device->maxGridSize[2] = 65535;
  device->regsPerBlock = device->regsPerMultiprocessor = 65536;
  device->sharedMemPerBlock = 48 << 10;
  device->sharedMemPerBlockOptin = 227 << 10;
  device->sharedMemPerMultiprocessor = 228 << 10;
  device->reservedSharedMemPerBlock = 1 << 10;
  device->totalConstMem = 64 << 10;
  device->l2CacheSize = 50 << 20;
  device->memoryBusWidth = 5120;
  device->textureAlignment = 512;
  device->memPitch = 2147483647;
  device->asyncEngineCount = 3;
  device->canMapHostMemory = device->concurrentKernels = device->unifiedAddressing = device->managedMemory = 1;
  device->streamPrioritiesSupported = device->cooperativeLaunch = device->hostRegisterSupported = 1;
  device->memoryPoolsSupported = device->clusterLaunch = 1;
}

int attribute(int of) {
  cudaDeviceProp device;
  describe(&device);
  switch (of) {
    case cudaDevAttrComputeCapabilityMajor: return device.major;
    case cudaDevAttrComputeCapabilityMinor: return device.minor;
    case cudaDevAttrMultiProcessorCount: return device.multiProcessorCount;
    case cudaDevAttrWarpSize: return device.warpSize;
    case cudaDevAttrMaxThreadsPerBlock: return device.maxThreadsPerBlock;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return device.maxThreadsPerMultiProcessor;
    case cudaDevAttrMaxSharedMemoryPerBlock: return (int)device.sharedMemPerBlock;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return (int)device.sharedMemPerBlockOptin;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return (int)device.sharedMemPerMultiprocessor;
    case cudaDevAttrReservedSharedMemoryPerBlock: return (int)device.reservedSharedMemPerBlock;
    case cudaDevAttrMaxRegistersPerBlock: return device.regsPerBlock;
    case cudaDevAttrMaxRegistersPerMultiprocessor: return device.regsPerMultiprocessor;
    case cudaDevAttrL2CacheSize: return device.l2CacheSize;
    case cudaDevAttrGlobalMemoryBusWidth: return device.memoryBusWidth;
    case cudaDevAttrClockRate: return 1980000;
    case cudaDevAttrMemoryClockRate: return 2619000;
    case cudaDevAttrMaxGridDimX: return device.maxGridSize[0];
    case cudaDevAttrMaxGridDimY: return device.maxGridSize[1];
    case cudaDevAttrMaxGridDimZ: return device.maxGridSize[2];
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrMemoryPoolsSupported: return 1;
    default: return 0;
  }
}
}  // namespace fake

using namespace fake;
static thread_local cudaError_t last = cudaSuccess;

cudaError_t fake::error(cudaError_t code) {
  if (code != cudaSuccess) last = code;
  return code;
}

EXPORTED cudaError_t cudaGetLastError() {
  auto code = last;
  last = cudaSuccess;
  return code;
}
EXPORTED cudaError_t cudaPeekAtLastError() { return last; }
EXPORTED const char* cudaGetErrorString(cudaError_t code) {
  static thread_local char text[48];
  snprintf(text, sizeof text, "error %d of the fake CUDA", (int)code);
  return text;
}
EXPORTED const char* cudaGetErrorName(cudaError_t code) { return cudaGetErrorString(code); }

EXPORTED cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
EXPORTED cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
EXPORTED cudaError_t cudaSetDevice(int device) { return error(device ? cudaErrorInvalidDevice : cudaSuccess); }
#undef cudaGetDeviceProperties
EXPORTED cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int device) {
  if (device) return error(cudaErrorInvalidDevice);
  return describe(to), cudaSuccess;
}
EXPORTED cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr of, int) {
  return *value = attribute(of), cudaSuccess;
}
EXPORTED cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int) {
  return snprintf(text, size, "0000:01:00.0"), cudaSuccess;
}
EXPORTED cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
EXPORTED cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDA_VERSION, cudaSuccess; }
EXPORTED cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
EXPORTED cudaError_t cudaProfilerStart() { return cudaSuccess; }
EXPORTED cudaError_t cudaProfilerStop() { return cudaSuccess; }
