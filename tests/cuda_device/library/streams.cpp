// Streams and events, and what is legal while a stream captures.
#include "device.h"

#include <ctime>
#include <map>
#include <set>

namespace fake {
static std::set<Capture*> captures;
static thread_local int thread_mode = cudaStreamCaptureModeGlobal;
static thread_local std::set<Capture*> of_thread;
static unsigned long long next_id = 1;

struct Stream {
  unsigned flags;
  int priority;
  Capture* capture = nullptr;
  long works = 0;   // of the capture that it has joined
  long joined = 0;  // how many of them the origin waits for
};
struct Event {
  bool timing;
  bool recorded = false;
  double at_ms = 0;
  unsigned long long capture = 0;
  Stream* stream = nullptr;
  long works = 0;
};

static Stream* legacy() {
  static Stream stream{0, 0};
  return &stream;
}
static Stream* of(cudaStream_t stream) {
  bool is_legacy = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return is_legacy ? legacy() : (Stream*)stream;
}
Capture* capture_of(cudaStream_t stream) { return of(stream)->capture; }

static double now_ms() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e3 + time.tv_nsec * 1e-6;
}

bool spoils_capture(const char* call) {
  Locked locked;
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  bool spoils = false;
  for (auto* capture : captures) {
    bool here = of_thread.count(capture) && capture->mode != cudaStreamCaptureModeRelaxed;
    bool anywhere = thread_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (here || anywhere) spoils = capture->spoilt = true;
  }
  if (spoils) refused(call);
  return spoils;
}

cudaError_t queue(cudaStream_t stream, Work work) {
  Locked locked;
  auto* on = of(stream);
  if (auto* capture = on->capture) {
    if (capture->spoilt) return error(cudaErrorStreamCaptureInvalidated);
    on->works++;
    capture->works.push_back(std::move(work));
    return cudaSuccess;
  }
  if (on == legacy()) {
    for (auto* capture : captures) {
      if (of(capture->origin)->flags & cudaStreamNonBlocking) continue;
      refused("work on the legacy stream");
      capture->spoilt = true;
      return error(cudaErrorStreamCaptureImplicit);
    }
  }
  if (work.of == Work::KERNEL) count("kernels"), count("kernel " + work.name);
  if (work.done) work.done();
  return cudaSuccess;
}

// A call that waits for a stream, or asks it, is refused while that stream captures, and spoils the capture.
static cudaError_t wait_for(Stream* stream, const char* call) {
  Locked locked;
  if (stream->capture) {
    refused(call);
    stream->capture->spoilt = true;
    return error(cudaErrorStreamCaptureUnsupported);
  }
  REFUSE_WHILE_CAPTURING(call);
  count(call);
  return cudaSuccess;
}
static cudaError_t wait_for(Event* event, const char* call) {
  Locked locked;
  if (event->capture) return refused(call), error(cudaErrorCapturedEvent);
  REFUSE_WHILE_CAPTURING(call);
  count(call);
  return cudaSuccess;
}
}  // namespace fake

using namespace fake;

EXPORTED cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return *stream = (cudaStream_t) new Stream{flags, priority}, cudaSuccess;
}
EXPORTED cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
EXPORTED cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
EXPORTED cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
EXPORTED cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return *priority = of(stream)->priority, cudaSuccess;
}
EXPORTED cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return wait_for(of(stream), "cudaStreamSynchronize");
}
EXPORTED cudaError_t cudaStreamQuery(cudaStream_t stream) { return wait_for(of(stream), "cudaStreamQuery"); }
EXPORTED cudaError_t cudaDeviceSynchronize() {
  REFUSE_WHILE_CAPTURING("cudaDeviceSynchronize");
  return count("cudaDeviceSynchronize"), cudaSuccess;
}

EXPORTED cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return *event = (cudaEvent_t) new Event{!(flags & cudaEventDisableTiming)}, cudaSuccess;
}
EXPORTED cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
EXPORTED cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete (Event*)event, cudaSuccess; }
EXPORTED cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  Locked locked;
  auto *to = (Event*)event;
  auto *on = of(stream);
  to->recorded = true;
  to->at_ms = now_ms();
  to->capture = on->capture ? on->capture->id : 0;
  to->stream = on;
  to->works = on->works;
  if (!on->capture) count("events");
  return cudaSuccess;
}
EXPORTED cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
EXPORTED cudaError_t cudaEventQuery(cudaEvent_t event) { return wait_for((Event*)event, "cudaEventQuery"); }
EXPORTED cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return wait_for((Event*)event, "cudaEventSynchronize");
}
EXPORTED cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
  auto *from = (Event*)first, *to = (Event*)second;
  if (!from->timing || !to->timing || !from->recorded || !to->recorded) return error(cudaErrorInvalidResourceHandle);
  return *milliseconds = (float)(to->at_ms - from->at_ms), cudaSuccess;
}
EXPORTED cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Locked locked;
  auto* on = of(stream);
  auto* waited = (Event*)event;
  Capture* theirs = nullptr;
  for (auto* capture : captures)
    if (capture->id == waited->capture) theirs = capture;
  if (on->capture && on->capture != theirs) {
    refused("a wait for work outside of the capture");
    on->capture->spoilt = true;
    return error(cudaErrorStreamCaptureIsolation);
  }
  if (theirs && !on->capture) on->capture = theirs, on->works = on->joined = 0;
  if (theirs && on == of(theirs->origin) && waited->stream != on) waited->stream->joined = waited->works;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return queue(stream, {Work::FILL, "host function", [=] { function(data); }});
}

EXPORTED cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  int before = thread_mode;
  thread_mode = *mode;
  return *mode = (cudaStreamCaptureMode)before, cudaSuccess;
}
EXPORTED cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Locked locked;
  auto* on = of(stream);
  if (on == legacy()) return error(cudaErrorStreamCaptureUnsupported);
  if (on->capture) return error(cudaErrorIllegalState);
  on->capture = new Capture{next_id++, mode, false, stream, {}};
  captures.insert(on->capture);
  of_thread.insert(on->capture);
  return count("captures"), cudaSuccess;
}
struct CUgraph_st {
  std::vector<Work> works;
};
// Streams that have joined it are found by walking all that exist; there are few.
EXPORTED cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Locked locked;
  auto* on = of(stream);
  auto* capture = on->capture;
  if (!capture || capture->origin != stream) return error(cudaErrorIllegalState);
  on->capture = nullptr;
  captures.erase(capture);
  of_thread.erase(capture);
  bool spoilt = capture->spoilt;
  *graph = spoilt ? nullptr : (cudaGraph_t) new CUgraph_st{std::move(capture->works)};
  delete capture;
  if (spoilt) count("captures that were spoilt");
  return spoilt ? error(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}
EXPORTED cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  auto* capture = capture_of(stream);
  *status = !capture           ? cudaStreamCaptureStatusNone
            : capture->spoilt ? cudaStreamCaptureStatusInvalidated
                              : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
#undef cudaStreamGetCaptureInfo
EXPORTED cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                              unsigned long long* id, cudaGraph_t* graph,
                                              const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                              size_t* count) {
  cudaStreamIsCapturing(stream, status);
  auto* capture = capture_of(stream);
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}

// Graphs: what was captured, in its order.
static const size_t GRAPH_BYTES = 64 << 10, NODE_BYTES = 2 << 10;  // of the device, about
static size_t graph_memory(cudaGraphExec_t graph) {
  return GRAPH_BYTES + NODE_BYTES * ((CUgraph_st*)graph)->works.size();
}
EXPORTED cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* number) {
  return *number = ((CUgraph_st*)graph)->works.size(), cudaSuccess;
}
EXPORTED cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  Locked locked;
  *made = (cudaGraphExec_t) new CUgraph_st{((CUgraph_st*)graph)->works};
  memory_used += graph_memory(*made);
  return count("graphs made"), cudaSuccess;
}
EXPORTED cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(made, graph, flags);
}
EXPORTED cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete (CUgraph_st*)graph, cudaSuccess; }
EXPORTED cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  Locked locked;
  memory_used -= graph_memory(graph);
  return delete (CUgraph_st*)graph, cudaSuccess;
}
EXPORTED cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  Locked locked;
  if (capture_of(stream)) return refused("a graph within a capture"), error(cudaErrorStreamCaptureUnsupported);
  count("graphs launched");
  for (auto& work : ((CUgraph_st*)graph)->works) {
    count("nodes");
    const char* kinds[] = {"kernel ", "copy ", "fill "};
    count("node " + (kinds[work.of] + work.name));
    if (work.done) work.done();
  }
  return cudaSuccess;
}
EXPORTED cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned, unsigned) {
  return *object = (cudaUserObject_t)1, cudaSuccess;
}
EXPORTED cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) {
  return cudaSuccess;
}
EXPORTED cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }
