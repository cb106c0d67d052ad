// Decides when a process ends whose peers have failed, and waits for all ranks at the end of the program.
#include "comm/p2p/job/process.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/error_messages.h"
#include "comm/launch/launchers.h"
#include "comm/launch/rank_exit.h"
#include "comm/p2p/backend.h"
#include "internal/ranks/failed_call.h"

namespace dtensor::p2p {
namespace {

constexpr std::chrono::milliseconds kPollInterval{200};
constexpr std::chrono::milliseconds kAfterFailure{3000};

std::mutex jobs_mutex;

std::vector<std::shared_ptr<Job>>& jobs() {
  static auto& all = *new std::vector<std::shared_ptr<Job>>;
  return all;
}

// A rank that computes, sleeps or waits for something else does not notice that the run has failed. It gets some time
// to reach a call and report its position; then its process ends.
void exit_if_others_failed(Job& job) {
  while (!job.closed()) {
    std::this_thread::sleep_for(kPollInterval);
    job.poll();
    if (!job.failed()) continue;
    std::this_thread::sleep_for(kAfterFailure);
    if (job.closed() || job.ending()) return;
    print_failure(job.rank(),
                  job.failure() + " [rank " + std::to_string(job.rank()) + " did not notice: it was in no collective]");
    flush_standard_output();
    job.end();
  }
}

}  // namespace

std::shared_ptr<Job> make_job(std::unique_ptr<Transport> transport, const RunOptions& options) {
  auto job = std::make_shared<Job>(std::move(transport), options);
  const std::lock_guard lock(jobs_mutex);
  return jobs().emplace_back(std::move(job));
}

bool is_unused(const std::shared_ptr<Job>& job) { return job.use_count() == 2; }

void forget_job(std::shared_ptr<Job> job) {
  const std::lock_guard lock(jobs_mutex);
  std::erase(jobs(), job);
}

Communicator start(Job& job) {
  const bool chosen_by_user = !job.options().set_threads || std::getenv("OMP_NUM_THREADS") != nullptr;
  if (!chosen_by_user) at::set_num_threads(std::max(1, job.transport().cores()));
  const Communicator world(make_world_backend(job));
  job.set_record(backend_of(world)->shared_record());
  return world;
}

int run_process(std::unique_ptr<Transport> transport, const std::function<void(Communicator)>& fn, RunOptions options) {
  const auto job = make_job(std::move(transport), options);
  try {
    if (!job->transport().abort_ends_all()) std::thread([job] { exit_if_others_failed(*job); }).detach();
    fn(start(*job));
    run_rank_exit_hooks();
    job->leave();
  } catch (...) {
    const std::string text = current_exception_text();
    const std::string trace = current_exception_trace();  // takes a while; later, the others would not wait for it
    job->fail("rank " + std::to_string(job->rank()) + " failed: " + text);
    if (job->is_first_to_print(text)) print_failure(job->rank(), text, trace);
    std::cout.flush();
    flush_standard_output();
    job->end();
  }
  job->close();
  return 0;
}

}  // namespace dtensor::p2p

namespace dtensor {

void report_failed_call(const std::string& error) {
  const std::lock_guard lock(p2p::jobs_mutex);
  for (const auto& job : p2p::jobs()) job->report_failed_call(error);
}

}  // namespace dtensor
