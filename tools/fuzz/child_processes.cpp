// Children write their results to shared memory; the parent monitors their progress.
#include "fuzz/child_processes.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

namespace dtensor::fuzz {
namespace {

struct Slot {
  char word[24];
  char text[2000];
};

struct Shared {
  std::atomic<int> running;  // Index of the current job.
  std::atomic<int> done;     // Number of finished jobs.
};

void put(char* to, std::size_t size, const std::string& text) {
  std::strncpy(to, text.c_str(), size - 1);
  to[size - 1] = 0;
}

void* shared_memory(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "no shared memory");
  return memory;
}

[[noreturn]] void run_child(int first, int count, Shared& shared, Slot* slots,
                            const std::function<DrawResult(int, const Note&)>& job) {
  at::set_num_threads(1);  // Creates the thread pool, to avoid a race between the first two threads of a child.
  for (int i = first; i < count; ++i) {
    shared.running = i;
    const DrawResult ending = job(i, [&](const std::string& text) { put(slots[i].text, sizeof slots[i].text, text); });
    put(slots[i].text, sizeof slots[i].text, ending.text);
    put(slots[i].word, sizeof slots[i].word, ending.word);
    shared.done = i + 1;
  }
  _exit(0);
}

// Whether the child ended normally; a child that exceeds the time of a job is killed.
bool wait_for(pid_t child, const Shared& shared, int seconds_per_job) {
  int status = 0, seen = -1, waited = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    usleep(2000);
    waited = shared.done == seen ? waited + 2 : 0;
    seen = shared.done;
    if (waited < seconds_per_job * 1000) continue;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return false;
  }
  return true;
}

}  // namespace

std::vector<DrawResult> run_isolated(int count, int seconds_per_job,
                                     const std::function<DrawResult(int, const Note&)>& job) {
  const std::size_t bytes = sizeof(Shared) + sizeof(Slot) * static_cast<std::size_t>(count);
  void* memory = shared_memory(bytes);
  auto& shared = *new (memory) Shared();
  auto* slots = reinterpret_cast<Slot*>(reinterpret_cast<char*>(memory) + sizeof(Shared));
  while (shared.done < count) {
    const int first = shared.done;
    const pid_t child = fork();
    TORCH_CHECK(child >= 0, "no child process");
    if (child == 0) run_child(first, count, shared, slots, job);
    const bool ended = wait_for(child, shared, seconds_per_job);
    if (shared.done >= count) break;
    put(slots[shared.done].word, sizeof slots[0].word, ended ? "crash" : "hang");
    shared.done = shared.done + 1;
  }
  std::vector<DrawResult> endings;
  for (int i = 0; i < count; ++i) endings.push_back({slots[i].word, slots[i].text});
  munmap(memory, bytes);
  return endings;
}

}  // namespace dtensor::fuzz
