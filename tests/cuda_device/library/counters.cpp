// Counters by name, and the calls that were refused; tests read them by ctypes.
#include "device.h"

#include <execinfo.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace fake {
std::recursive_mutex mutex;
static std::map<std::string, long> counters;

void count(const std::string& what, long amount) {
  Locked locked;
  counters[what] += amount;
}

void refused(const std::string& what) {
  count("refused " + what);
  if (!getenv("FAKE_CUDA_TRACE")) return;
  void* frames[32];
  fprintf(stderr, "fake CUDA refuses %s\n", what.c_str());
  backtrace_symbols_fd(frames, backtrace(frames, 32), 2);
}
}  // namespace fake

// Writes "name\tamount\n" of each counter; returns the bytes that it takes with the closing zero.
EXPORTED size_t fake_cuda_counters(char* text, size_t size) {
  fake::Locked locked;
  std::string all;
  for (auto& [name, amount] : fake::counters) all += name + "\t" + std::to_string(amount) + "\n";
  if (size > all.size()) memcpy(text, all.c_str(), all.size() + 1);
  return all.size() + 1;
}

EXPORTED void fake_cuda_reset() {
  fake::Locked locked;
  fake::counters.clear();
}

EXPORTED size_t fake_cuda_memory_used() {
  fake::Locked locked;
  return fake::memory_used;
}
