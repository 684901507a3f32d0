// Kernels: those of torch come by the runtime, Triton's by the driver. None is computed, but for two of pyengine's:
// `verify_kernel`, which here samples the letter after a row's token, and `feed_kernel`, which hands that on.
#include "device.h"

#include <cstdlib>
#include <cstring>
#include <unordered_map>

namespace fake {
static std::unordered_map<const void*, std::string> names;
static std::string name_of(const void* function) {
  Locked locked;
  auto found = names.find(function);
  return found == names.end() ? "?" : found->second;
}

static int setting(const char* name) {
  const char* given = getenv(name);
  return given ? atoi(given) : -1;
}

static const int LETTERS = 26, FIRST_LETTER = 64;  // as tests.models.write_tokenizer has them
static int after(int token) { return FIRST_LETTER + (token - FIRST_LETTER + 1 + LETTERS * 64) % LETTERS; }

using Numbers = std::vector<int32_t*>;

static void verify(int64_t* header, const Numbers& of) {
  auto *logit_start = of[1], *logit_token = of[2], *token_ids = of[3], *tokens = of[4], *sequence = of[5];
  auto *counts = of[6], *compacted = of[7], *last_token = of[8];
  static const int num_sampled = setting("FAKE_CUDA_NUM_SAMPLED");
  int written = 0;
  for (int64_t row = 0; row < header[num_sampled]; row++) {
    int first = logit_start[row], end = logit_start[row + 1], held = 1;
    for (int at = first; at < end; at++) tokens[at] = after(token_ids[logit_token[at]]);
    while (first + held < end && tokens[first + held - 1] == token_ids[logit_token[first + held - 1] + 1]) held++;
    counts[row] = held;
    memcpy(compacted + written, tokens + first, held * sizeof(int32_t));
    written += held;
    last_token[sequence[row]] = tokens[first + held - 1];
  }
}

static void feed(int64_t* header, const Numbers& of) {
  auto *token_ids = of[1], *feed_token = of[2], *feed_sequence = of[3], *last_token = of[4];
  static const int num_feeds = setting("FAKE_CUDA_NUM_FEEDS");
  for (int64_t at = 0; at < header[num_feeds]; at++) token_ids[feed_token[at]] = last_token[feed_sequence[at]];
}

struct Function {
  std::string name;
};

static cudaError_t launch(Function* function, void** arguments, bool ahead, cudaStream_t stream) {
  Work work{Work::KERNEL, function->name + (ahead ? " ahead" : ""), nullptr};
  bool verifies = function->name == "verify_kernel", feeds = function->name == "feed_kernel";
  if (verifies || feeds) {
    Numbers given;
    for (int at = 0; at < (verifies ? 9 : 5); at++) given.push_back(*(int32_t**)arguments[at]);
    work.done = [=] { (verifies ? verify : feed)((int64_t*)given[0], given); };
  }
  return queue(stream, std::move(work));
}
}  // namespace fake

using namespace fake;

// What nvcc's code calls as a library of kernels is loaded.
EXPORTED void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
EXPORTED void __cudaRegisterFatBinaryEnd(void**) {}
EXPORTED void __cudaUnregisterFatBinary(void**) {}
EXPORTED void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*,
                                     dim3*, int*) {
  Locked locked;
  names[function] = std::string(name).substr(0, 120);
}
EXPORTED void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORTED char __cudaInitModule(void**) { return 0; }

static thread_local struct {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} configuration;
EXPORTED unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
EXPORTED cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid, *block = configuration.block, *shared = configuration.shared;
  *(cudaStream_t*)stream = configuration.stream;
  return cudaSuccess;
}

EXPORTED cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return *kernel = (cudaKernel_t)function, cudaSuccess;
}
EXPORTED cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return queue(stream, {Work::KERNEL, name_of(function), nullptr});
}
EXPORTED cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return queue(stream, {Work::KERNEL, name_of((const void*)kernel), nullptr});
}
EXPORTED cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* function, void**) {
  return queue(how->stream, {Work::KERNEL, name_of(function), nullptr});
}
EXPORTED cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, const void*) {
  memset(of, 0, sizeof *of);
  of->maxThreadsPerBlock = 1024;
  of->numRegs = 64;
  of->binaryVersion = of->ptxVersion = capability();
  of->maxDynamicSharedSizeBytes = 227 << 10;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
EXPORTED cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t) {
  return *blocks = threads > 0 ? 2048 / threads : 1, cudaSuccess;
}
EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                            int threads, size_t shared, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}
EXPORTED cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  return *address = (void*)symbol, cudaSuccess;
}

// The driver's part, which Triton calls.
EXPORTED CUresult cuModuleLoadData(CUmodule* module, const void*) {
  if (spoils_capture("cuModuleLoadData")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  count("modules loaded");
  return *module = (CUmodule)1, CUDA_SUCCESS;
}
EXPORTED CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
EXPORTED CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  return *function = (CUfunction) new Function{name}, CUDA_SUCCESS;
}
EXPORTED CUresult cuFuncGetAttribute(int* value, CUfunction_attribute of, CUfunction) {
  *value = of == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : of == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
EXPORTED CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
EXPORTED CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
EXPORTED CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  return *clusters = 1, CUDA_SUCCESS;
}
EXPORTED CUresult cuLaunchKernelEx(const CUlaunchConfig* how, CUfunction function, void** arguments, void**) {
  bool ahead = false;
  for (unsigned at = 0; at < how->numAttrs; at++)
    ahead |= how->attrs[at].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  return (CUresult)launch((Function*)function, arguments, ahead, (cudaStream_t)how->hStream);
}
EXPORTED CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, CUstream stream, void** arguments, void**) {
  return (CUresult)launch((Function*)function, arguments, false, (cudaStream_t)stream);
}
