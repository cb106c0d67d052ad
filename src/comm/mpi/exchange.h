// A set of messages under way.
#pragma once

#include <c10/util/FunctionRef.h>
#include <mpi.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi/job.h"
#include "dtensor/comm_backend.h"

namespace dtensor::mpi {

// The largest single MPI message in bytes; longer ones are cut (counts are int). Changed by tests only.
extern std::int64_t largest_message;

class Exchange {
 public:
  Exchange(Job& job, MPI_Comm comm, int tag) : job_(job), comm_(comm), tag_(tag) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange();  // abandons what is under way, and keeps its memory for good

  // `peer`: a world rank. The memory must live until wait() returns; keep() what owns it.
  void send(const void* data, std::int64_t bytes, std::int64_t peer);
  void recv(void* data, std::int64_t bytes, std::int64_t peer);
  void keep(const at::Tensor& tensor) { kept_.tensors.push_back(tensor); }
  void keep(std::shared_ptr<void> memory) { kept_.others.push_back(std::move(memory)); }

  bool test();  // progress; whether all is through
  // Blocks until all is through. Throws CommError: a failure elsewhere, a peer that left, the timeout. `place` says in
  // what this rank waits.
  void wait(c10::function_ref<std::string()> place);

 private:
  struct Kept {
    std::vector<at::Tensor> tensors;
    std::vector<std::shared_ptr<void>> others;
  };
  bool done() const { return open_ == 0; }
  void watch(c10::function_ref<std::string()> place, std::chrono::steady_clock::time_point begin);
  std::vector<std::int64_t> missing() const;
  std::string report(c10::function_ref<std::string()> place) const;

  Job& job_;
  MPI_Comm comm_;
  int tag_;
  std::vector<MPI_Request> requests_;
  std::vector<std::int64_t> peers_;  // of each request
  Kept kept_;
  int open_ = 0;
  std::chrono::steady_clock::time_point noticed_leaving_{};
};

}  // namespace dtensor::mpi
