// Decides whether this thread may call MPI, and whether calls of several threads must take turns.
#include "comm/mpi/thread_level.h"

#include "comm/mpi/api.h"
#include "dtensor/comm.h"

namespace dtensor::mpi {

bool has_ended() {
  int ended = 0;
  api().finalized(&ended);
  return ended != 0;
}

// The thread that initialized MPI is known only if it is this one; any other is refused by its first call.
ThreadLevel::ThreadLevel() {
  int level = 0, is_main = 0;
  api().query_thread(&level);
  api().is_thread_main(&is_main);
  any_thread_ = level >= MPI_THREAD_SERIALIZED;
  serialized_ = level == MPI_THREAD_SERIALIZED;
  if (is_main != 0) main_thread_ = std::this_thread::get_id();
  name_ = level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED";
}

const ThreadLevel& ThreadLevel::get() {
  static const ThreadLevel level;
  return level;
}

void ThreadLevel::check() const {
  if (has_ended()) throw CommError("MPI has ended in this process: MPI_Finalize was called before this communication");
  if (permits_this_thread()) return;
  throw CommError(std::string("MPI was initialized with ") + name_ +
                  ", so only the thread that initialized it may communicate, and this is another one. Communicate on "
                  "that thread, or initialize MPI by MPI_Init_thread with MPI_THREAD_MULTIPLE");
}

std::unique_lock<std::recursive_mutex> ThreadLevel::lock() const {
  static auto& mutex = *new std::recursive_mutex;  // communicators may outlive the program's static objects
  return serialized_ ? std::unique_lock(mutex) : std::unique_lock<std::recursive_mutex>();
}

}  // namespace dtensor::mpi
