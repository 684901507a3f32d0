// cuBLAS and cuBLASLt: products are counted. Handles know their stream.
#include "device.h"

#include <cstdlib>
#include <cstring>

using namespace fake;

namespace {
struct Handle {
  cudaStream_t stream = nullptr;
  int math = 0, pointers = 0;
};
const int SUCCESS = 0, FAILED = 13;
int product(void* handle, const char* name) {
  return queue(((Handle*)handle)->stream, {Work::KERNEL, name, nullptr}) == cudaSuccess ? SUCCESS : FAILED;
}
int make(void** description) { return *description = calloc(1, 64), SUCCESS; }
}  // namespace

EXPORTED int cublasCreate_v2(void** handle) {
  if (spoils_capture("cublasCreate")) return FAILED;
  count("handles of cuBLAS");
  return *handle = new Handle, SUCCESS;
}
EXPORTED int cublasDestroy_v2(void*) { return SUCCESS; }
EXPORTED int cublasSetStream_v2(void* handle, cudaStream_t stream) {
  return ((Handle*)handle)->stream = stream, SUCCESS;
}
EXPORTED int cublasSetWorkspace_v2(void*, void*, size_t) { return SUCCESS; }
EXPORTED int cublasSetMathMode(void* handle, int mode) { return ((Handle*)handle)->math = mode, SUCCESS; }
EXPORTED int cublasGetMathMode(void* handle, int* mode) { return *mode = ((Handle*)handle)->math, SUCCESS; }
EXPORTED int cublasSetPointerMode_v2(void* handle, int mode) { return ((Handle*)handle)->pointers = mode, SUCCESS; }
EXPORTED int cublasGetPointerMode_v2(void* handle, int* mode) { return *mode = ((Handle*)handle)->pointers, SUCCESS; }
EXPORTED int cublasSetSmCountTarget(void*, int) { return SUCCESS; }
EXPORTED int cublasGemmEx(void* handle, ...) { return product(handle, "cublasGemmEx"); }
EXPORTED int cublasSgemm_v2(void* handle, ...) { return product(handle, "cublasSgemm"); }
EXPORTED int cublasGemmStridedBatchedEx(void* handle, ...) { return product(handle, "cublasGemmStridedBatchedEx"); }
EXPORTED int cublasSgemmStridedBatched(void* handle, ...) { return product(handle, "cublasSgemmStridedBatched"); }

EXPORTED int cublasLtMatmul(void*, void*, const void*, const void*, const void*, const void*, const void*, const void*,
                            const void*, void*, void*, void*, const void*, void*, size_t, cudaStream_t stream) {
  return queue(stream, {Work::KERNEL, "cublasLtMatmul", nullptr}) == cudaSuccess ? SUCCESS : FAILED;
}
EXPORTED int cublasLtMatmulDescCreate(void** made, int, int) { return make(made); }
EXPORTED int cublasLtMatmulDescDestroy(void* made) { return free(made), SUCCESS; }
EXPORTED int cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t) { return SUCCESS; }
EXPORTED int cublasLtMatrixLayoutCreate(void** made, int, uint64_t, uint64_t, int64_t) { return make(made); }
EXPORTED int cublasLtMatrixLayoutDestroy(void* made) { return free(made), SUCCESS; }
EXPORTED int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t) { return SUCCESS; }
EXPORTED int cublasLtMatmulPreferenceCreate(void** made) { return make(made); }
EXPORTED int cublasLtMatmulPreferenceDestroy(void* made) { return free(made), SUCCESS; }
EXPORTED int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return SUCCESS; }
EXPORTED int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* results,
                                            int* number) {
  memset(results, 0, 96);  // one cublasLtMatmulHeuristicResult_t, whose state is success
  return *number = 1, SUCCESS;
}
EXPORTED size_t cublasLtGetVersion() { return 130000; }
