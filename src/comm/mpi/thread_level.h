// What the thread level that the program asked MPI for permits.
#pragma once

#include <mutex>
#include <thread>

namespace dtensor::mpi {

// Of the process, read once MPI is initialized.
class ThreadLevel {
 public:
  static const ThreadLevel& get();

  // Whether this thread may call MPI: under MPI_THREAD_SINGLE and MPI_THREAD_FUNNELED only the one that initialized it.
  bool permits_this_thread() const { return any_thread_ || std::this_thread::get_id() == main_thread_; }
  // Whether any thread may call MPI at any time, also while another one calls it.
  bool permits_all_threads() const { return any_thread_ && !serialized_; }
  // Throws CommError where this thread may not call MPI, or MPI has ended.
  void check() const;
  // Under MPI_THREAD_SERIALIZED: held while this thread calls MPI.
  std::unique_lock<std::recursive_mutex> lock() const;

 private:
  ThreadLevel();

  bool any_thread_ = false, serialized_ = false;
  std::thread::id main_thread_;
  const char* name_ = "";
};

// Whether MPI_Finalize was called.
bool has_ended();

}  // namespace dtensor::mpi
