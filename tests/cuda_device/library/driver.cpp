// The driver's part beside kernels.
#include "device.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

using namespace fake;

EXPORTED CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
EXPORTED CUresult cuDriverGetVersion(int* version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
EXPORTED CUresult cuDeviceGetCount(int* number) { return *number = 1, CUDA_SUCCESS; }
EXPORTED CUresult cuDeviceGet(CUdevice* device, int number) {
  return *device = number, number ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
#undef cuDeviceTotalMem
EXPORTED CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) { return *bytes = total_memory(), CUDA_SUCCESS; }
EXPORTED CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute of, CUdevice) {
  return *value = attribute(of), CUDA_SUCCESS;
}
EXPORTED CUresult cuDeviceGetName(char* text, int size, CUdevice) {
  return snprintf(text, size, "%s", NAME), CUDA_SUCCESS;
}
EXPORTED CUresult cuCtxGetCurrent(CUcontext* context) { return *context = (CUcontext)1, CUDA_SUCCESS; }
EXPORTED CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
EXPORTED CUresult cuCtxGetDevice(CUdevice* device) { return *device = 0, CUDA_SUCCESS; }
EXPORTED CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return *context = (CUcontext)1, CUDA_SUCCESS;
}
EXPORTED CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  return *flags = 0, *active = 1, CUDA_SUCCESS;
}
EXPORTED CUresult cuCtxGetLimit(size_t* value, CUlimit) { return *value = 1 << 20, CUDA_SUCCESS; }
EXPORTED CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
EXPORTED CUresult cuGetErrorString(CUresult code, const char** text) {
  static thread_local char written[48];
  snprintf(written, sizeof written, "error %d of the fake driver", (int)code);
  return *text = written, CUDA_SUCCESS;
}
EXPORTED CUresult cuGetErrorName(CUresult code, const char** text) { return cuGetErrorString(code, text); }
EXPORTED CUresult cuLogsRegisterCallback(CUlogsCallback, void*, CUlogsCallbackHandle*) { return CUDA_SUCCESS; }
EXPORTED CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle) { return CUDA_SUCCESS; }
EXPORTED CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return (CUresult)cudaStreamIsCapturing((cudaStream_t)stream, (cudaStreamCaptureStatus*)status);
}
EXPORTED CUresult cuPointerGetAttribute(void* value, CUpointer_attribute of, CUdeviceptr address) {
  if (kind_of((void*)address) == PAGEABLE) return CUDA_ERROR_INVALID_VALUE;
  if (of == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *(CUdeviceptr*)value = address;
  return CUDA_SUCCESS;
}
EXPORTED CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                         const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                         CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                         CUtensorMapFloatOOBfill) {
  return memset(map, 0, sizeof *map), CUDA_SUCCESS;
}

// torch asks for more functions than are called here; those that are not there say so when they are called.
static CUresult not_there() { return refused("a function of the driver that is not there"), CUDA_ERROR_NOT_SUPPORTED; }

EXPORTED cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                      cudaDriverEntryPointQueryResult* found) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (!*function) *function = (void*)not_there;
  if (found) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
