// The ranks of a Python program. run() starts threads of this process. A process that a launcher started is one rank
// from its first line to its last, but launch() runs a function. So launch() runs on a thread of its own, whose
// function publishes the communicator and returns, or throws, when the program ends.
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "bind.h"
#include "dtensor/comm_backend.h"
#include "dtensor/estimate.h"
#include "dtensor/launch.h"
#include "internal/checked_from_environment.h"

namespace dtensor::python {
namespace {

thread_local std::optional<Communicator> rank_world;  // set on threads that are ranks
thread_local bool is_process_rank = false;            // this thread called run(), or used the world outside any run()
std::atomic<int> active_runs{0};

RunOptions options_of(double timeout) {
  RunOptions options;
  TORCH_CHECK_VALUE(timeout > 0, "expected a positive timeout, got ", timeout, " seconds");
  constexpr double kForever = 1e12;  // seconds; infinity does not convert to milliseconds
  options.timeout = timeout < kForever ? std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1000))
                                       : std::chrono::milliseconds::max();
  return options;
}

// os.environ is a copy that Python made when it started. Programs pass it to the processes that they start.
int copy_mark_to_os_environ(void*) {
  const char* const mark = std::getenv("DTENSOR_RANK_PROCESS");
  if (mark == nullptr) return 0;
  try {
    py::module_::import("os").attr("environ")["DTENSOR_RANK_PROCESS"] = mark;
    return 0;
  } catch (py::error_already_set& error) {
    error.restore();
    return -1;
  }
}

class ProcessWorld {
 public:
  Communicator get() {
    TORCH_CHECK(!forked(),
                "this process was forked from a rank and is not a rank; start processes with the spawn method instead");
    std::unique_lock lock(mutex_);
    if (!started_) start();
    changed_.wait(lock, [&] { return world_ || over_; });
    TORCH_CHECK(!over_,
                ended_ ? "the world of this process has ended"
                       : "this process could not join the other ranks; see the line above",
                " (status ", status_, ")");
    const int threads = std::exchange(threads_, 0);
    if (threads > 0 && at::get_num_threads() == threads_before_) at::set_num_threads(threads);
    // launch() opens one on the thread that holds the world, which does not compute. This one is never closed: at
    // thread exit the thread-local state that closing needs may already be destroyed.
    thread_local const auto* const checked = new CheckedFromEnvironment;
    static_cast<void>(checked);
    return *world_;
  }

  void set_timeout(double seconds) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(!started_, "set_timeout(", seconds,
                "): the ranks have already joined; call it before creating the first mesh");
    options_ = options_of(seconds);
  }

  // NCCL over the ranks of `world`. That of all ranks is made once, so that all meshes share its streams. Collective.
  Communicator on_gpus(const Communicator& world) {
    const std::lock_guard lock(gpus_mutex_);
    const bool all = is_current(world);
    if (all && on_gpus_) return *on_gpus_;
    const Communicator made = nccl_communicator(world, selected_gpu(), options_);
    if (all) on_gpus_ = made;
    return made;
  }

  // Returns the exit status. `failure`: this rank's error, which ends the other ranks.
  int close(const std::string& failure) {
    if (forked()) return 0;
    std::unique_lock lock(mutex_);
    if (!started_) return 0;
    clear_cache();
    on_gpus_.reset();
    ended_ = true;
    failure_ = failure;
    changed_.notify_all();
    changed_.wait(lock, [&] { return over_; });
    world_.reset();
    if (thread_.joinable()) thread_.join();
    return status_;
  }

 private:
  // The current device of PyTorch if the program has used CUDA. -1: none, so each rank takes its own.
  static int selected_gpu() {
    const py::gil_scoped_acquire gil;
    const auto cuda = py::module_::import("torch").attr("cuda");
    return cuda.attr("is_initialized")().cast<bool>() ? cuda.attr("current_device")().cast<int>() : -1;
  }

  bool is_current(const Communicator& world) {
    const std::lock_guard lock(mutex_);
    return world_ && world == *world_;
  }

  // A forked process has the memory, but not the thread that runs launch().
  bool forked() const {
    const pid_t of = process_;
    return of != 0 && of != ::getpid();
  }

  void start() {
    started_ = true;
    process_ = ::getpid();
    thread_ = std::thread([this] {
      std::string name = "python";
      char* argv[] = {name.data(), nullptr};
      const int status = launch(
          1, argv, [this](const Communicator& world) { serve_world(world); }, options_);
      const std::lock_guard lock(mutex_);
      status_ = status;
      over_ = true;
      changed_.notify_all();
    });
  }

  void serve_world(const Communicator& world) {
    std::unique_lock lock(mutex_);
    world_ = world;
    threads_ = world.size() > 1 ? at::get_num_threads() : 0;  // this process's share of the machine, set by launch()
    changed_.notify_all();
    Py_AddPendingCall(&copy_mark_to_os_environ, nullptr);  // runs on the main thread, with the GIL
    changed_.wait(lock, [&] { return ended_; });
    if (!failure_.empty()) throw std::runtime_error(failure_);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  std::atomic<pid_t> process_{0};  // the process that called start()
  std::optional<Communicator> world_;
  std::mutex gpus_mutex_;
  std::optional<Communicator> on_gpus_;
  std::string failure_;
  RunOptions options_;
  // Set when the module is imported. If the program changes its thread count itself, that count is kept.
  const int threads_before_ = at::get_num_threads();
  int threads_ = 0, status_ = 0;
  bool started_ = false, ended_ = false, over_ = false;
};

// Never destroyed: the interpreter may end a process that is still a rank.
ProcessWorld& process_world() {
  static auto* world = new ProcessWorld;
  return *world;
}

class ThreadRankGuard {
 public:
  explicit ThreadRankGuard(Communicator world) : former_(std::exchange(rank_world, std::move(world))) {}
  ~ThreadRankGuard() { rank_world = std::move(former_); }
  ThreadRankGuard(const ThreadRankGuard&) = delete;
  ThreadRankGuard& operator=(const ThreadRankGuard&) = delete;

 private:
  std::optional<Communicator> former_;
};

using StartRanks = std::function<void(const std::function<void(const Communicator&)>& fn)>;

// The results of the ranks of a run, or the first error: later errors are its consequences. An exception of a rank
// replaces the PeerError that it caused on other ranks. Access needs the GIL.
struct Outcome {
  std::vector<py::object> results;
  std::optional<py::error_already_set> error, interrupted;
  int failed = -1;

  struct Rank {
    unsigned long thread;
    Communicator world;
  };
  std::map<int, Rank> under_way;

  void run_rank(const Communicator& world, const py::object& fn) {
    const at::ThreadLocalStateGuard put_back{at::ThreadLocalState()};  // threads are pooled: undo what fn sets
    const py::gil_scoped_acquire lock;
    if (interrupted) throw std::runtime_error("interrupted");
    const ThreadRankGuard as(world);
    under_way[world.rank()] = {PyThread_get_thread_ident(), world};
    try {
      results[static_cast<std::size_t>(world.rank())] = fn();
      under_way.erase(world.rank());
    } catch (py::error_already_set& e) {
      under_way.erase(world.rank());
      const bool replaces = error && is_peer_error(*error) && !is_peer_error(e) && !is_comm_error(e);
      if (error && !replaces) throw std::runtime_error("after another rank");
      failed = world.rank();
      error.emplace(std::move(e));
      throw std::runtime_error(py::str(error->value()).cast<std::string>());
    }
  }

  // An exception of a signal handler ends all ranks. abort() ends those that wait for others. The others raise the
  // exception asynchronously at their next Python instruction.
  void interrupt() {
    py::error_already_set raised;
    if (!interrupted) interrupted.emplace(std::move(raised));
    for (const auto& [number, rank] : under_way) PyThreadState_SetAsyncExc(rank.thread, interrupted->type().ptr());
    if (under_way.empty()) return;
    const Communicator world = under_way.begin()->second.world;
    const py::gil_scoped_release no_gil;
    world.abort("interrupted");
  }

  // `start` calls its argument on each rank. Called without the GIL. Python runs signal handlers on its main thread
  // only. If that thread blocked until the ranks end, Ctrl-C would have no effect.
  void run_ranks(const py::object& fn, const StartRanks& start) {
    const int threads = at::get_num_threads();
    const at::ThreadLocalState caller;
    auto over = std::async(std::launch::async, [&] {
      const at::ThreadLocalStateGuard profiled_as_caller(caller);
      at::get_num_threads();  // before its first call on a thread, set_num_threads applies to the entire process
      at::set_num_threads(threads);
      start([&](const Communicator& world) { run_rank(world, fn); });
    });
    constexpr auto kLook = std::chrono::milliseconds(50);
    while (over.wait_for(kLook) != std::future_status::ready) {
      const py::gil_scoped_acquire lock;
      if (PyErr_CheckSignals() != 0) interrupt();
    }
    over.get();
  }
};

struct ActiveRunGuard {
  ActiveRunGuard() { ++active_runs; }
  ~ActiveRunGuard() { --active_runs; }
  ActiveRunGuard(const ActiveRunGuard&) = delete;
  ActiveRunGuard& operator=(const ActiveRunGuard&) = delete;
};

// Throws the first error of a rank, with its number.
std::vector<py::object> run_ranks(int ranks, const py::object& fn, const StartRanks& start) {
  if (!rank_world) is_process_rank = true;
  Outcome outcome;
  outcome.results.resize(static_cast<std::size_t>(std::max(ranks, 0)));
  std::exception_ptr other;
  {
    const ActiveRunGuard counted;
    const py::gil_scoped_release no_gil;
    try {
      outcome.run_ranks(fn, start);
    } catch (...) {
      other = std::current_exception();
    }
  }
  if (outcome.interrupted) throw std::move(*outcome.interrupted);
  if (outcome.error) {
    const std::string note = "[rank " + std::to_string(outcome.failed) + " of " + std::to_string(ranks) + "]";
    if (py::hasattr(outcome.error->value(), "add_note")) outcome.error->value().attr("add_note")(note);
    throw std::move(*outcome.error);
  }
  if (other) std::rethrow_exception(other);
  return std::move(outcome.results);
}

py::list run(int ranks, const py::object& fn, double timeout) {
  const RunOptions options = options_of(timeout);
  py::list results;
  for (auto& result : run_ranks(ranks, fn, [&](const auto& of_rank) { run_local(ranks, of_rank, options); })) {
    results.append(std::move(result));
  }
  return results;
}

DryRunReport simulate(int ranks, const py::object& fn, int rank, std::optional<double> number,
                      const HardwareModel* hardware, bool staging) {
  DryRunOptions options{.ranks = ranks, .rank = rank, .number = number, .staging = staging};
  if (hardware != nullptr) options.trace = options.trace_memory = true, options.asynchronous = hardware->asynchronous;
  DryRunReport report;
  run_ranks(ranks, fn, [&](const auto& of_rank) { report = dry_run(options, of_rank); });
  return report;
}

void bind_communicator(py::module_& module) {
  py::class_<Communicator>(module, "Communicator", "An ordered set of ranks and its collectives.")
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("size", &Communicator::size)
      .def_property_readonly("backend", [](const Communicator& c) { return std::string(c.backend_name()); })
      .def_property_readonly("ranks", &Communicator::ranks, "World rank of each member.")
      .def("barrier", &Communicator::barrier, ReleaseGil())
      .def(
          "all_reduce",
          [](const Communicator& c, const at::Tensor& t, const std::string& op) {
            const Placement partial = parse_placement("P(" + op + ")");
            c.all_reduce(t, partial.reduce_op()).wait();
          },
          py::arg("tensor"), py::arg("op") = "sum", ReleaseGil(),
          "Reduces the members' tensors in place. `op`: sum, avg, max, min or product. Collective.")
      .def(
          "broadcast", [](const Communicator& c, const at::Tensor& t, int root) { c.broadcast(t, root).wait(); },
          py::arg("tensor"), py::arg("root") = 0, ReleaseGil(),
          "Copies the tensor of member `root` to all members, in place. Collective.")
      .def(
          "all_gather",
          [](const Communicator& c, const at::Tensor& t) {
            std::vector<at::Tensor> parts;
            for (int i = 0; i < c.size(); ++i) parts.push_back(at::empty_like(t));
            c.all_gather(parts, t).wait();
            return parts;
          },
          py::arg("tensor"), ReleaseGil(), "The members' tensors, of equal sizes and dtype. Collective.")
      .def("abort", &Communicator::abort, py::arg("reason"), ReleaseGil(),
           "Ends every wait of the run with this reason.")
      .def("__repr__", [](const Communicator& c) {
        return "Communicator(rank " + std::to_string(c.rank()) + " of " + std::to_string(c.size()) + ", " +
               c.backend_name() + ")";
      });
}

}  // namespace

// Without the check, a thread that a thread rank started would become rank 0 of a world of size one.
Communicator current_world() {
  if (rank_world) return *rank_world;
  if (active_runs == 0) is_process_rank = true;
  Communicator world = process_world().get();
  TORCH_CHECK(is_process_rank || world.size() > 1,
              "this thread is not a rank: run() is active, and its ranks are threads. A thread that a rank starts ",
              "(threading.Thread, ThreadPoolExecutor) is not a rank: pass it the rank's ", "number, mesh or tensors");
  return world;
}

Communicator world_on_device(const Communicator& world, c10::DeviceType device) {
  const bool moves = device != c10::DeviceType::CUDA || backend_of(world)->supports(device);
  return moves || is_dry_run() ? world : process_world().on_gpus(world);
}

void bind_world(py::module_& module) {
  process_world();
  bind_communicator(module);
  module.def("run", &run, py::arg("ranks"), py::arg("fn"), py::arg("timeout"));
  module.def("simulate", &simulate, py::arg("ranks"), py::arg("fn"), py::arg("rank"), py::arg("number"),
             py::arg("hardware"), py::arg("staging"));
  module.def("world", &current_world, ReleaseGil());
  module.def(
      "set_timeout", [](double seconds) { process_world().set_timeout(seconds); }, py::arg("seconds"));
  module.def("report_interrupt", &report_interrupt, py::arg("program"));
  module.def("is_thread_rank", [] { return rank_world.has_value(); });
  module.def(
      "close_world", [](const std::string& failure) { return process_world().close(failure); }, py::arg("failure"),
      ReleaseGil());
  // A hook for sys.excepthook. A SIGINT that arrived during the failed call would be raised in the first line of a hook
  // that is a Python function; this one passes it on as `interrupted`.
  module.def(
      "exception_hook",
      [](const py::function& hook) {
        return py::cpp_function([hook](const py::object& kind, const py::object& error, const py::object& trace) {
          bool interrupted = false;
          if (PyErr_CheckSignals() != 0) {
            interrupted = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0;
            PyErr_Clear();
          }
          hook(kind, error, trace, interrupted);
        });
      },
      py::arg("hook"));
}

}  // namespace dtensor::python
