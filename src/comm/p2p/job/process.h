// The life of one connected process of a launched program, from its first call to the common end of all ranks.
#pragma once

#include <functional>
#include <memory>

#include "comm/p2p/transport.h"
#include "dtensor/comm.h"

namespace dtensor::p2p {

class Job;

// The job lives as long as the process, since communicators may outlive what started it, unless forget_job() is called.
std::shared_ptr<Job> make_job(std::unique_ptr<Transport> transport, const RunOptions& options);
// Whether nothing but the caller's pointer uses the job: no communicator, no message.
bool is_unused(const std::shared_ptr<Job>& job);
// Destroys an unused job and its transport.
void forget_job(std::shared_ptr<Job> job);
// The communicator over all ranks of the job. Gives this rank's intra-op threads the cores that the transport counts,
// unless the options or OMP_NUM_THREADS say otherwise.
Communicator start(Job& job);

// Runs fn and returns the exit status; does not return where a rank failed.
int run_process(std::unique_ptr<Transport> transport, const std::function<void(Communicator)>& fn, RunOptions options);

}  // namespace dtensor::p2p
