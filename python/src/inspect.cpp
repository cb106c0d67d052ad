// Inspection of operator calls: explanations, counts of collectives, events, strictness, diagrams.
#include "bind.h"
#include "dtensor/bit_identical.h"
#include "dtensor/debug.h"

namespace dtensor::python {
namespace {

std::string explain_call(const py::function& fn, const py::args& args, const py::kwargs& kwargs) {
  const py::gil_scoped_release no_gil;
  return explain(
      [&] {
        const py::gil_scoped_acquire lock;
        fn(*args, **kwargs);
      },
      Explain::decisions);
}

const char* phase_name(Phase phase) { return phase == Phase::forward ? "forward" : "backward"; }

// Counts that stay readable after the scope is closed.
class CommCounts {
 public:
  void enter() {
    TORCH_CHECK(!mode_, "this CommDebugMode is already entered");
    mode_ = std::make_unique<CommDebugMode>();
  }
  void leave() {
    if (!mode_) return;
    counts_ = mode_->counts();
    table_ = mode_->table();
    mode_.reset();
  }
  const std::map<CommDebugMode::Key, CommDebugMode::Count>& counts() const { return mode_ ? mode_->counts() : counts_; }
  std::string table() const { return mode_ ? mode_->table() : table_; }

 private:
  std::unique_ptr<CommDebugMode> mode_;
  std::map<CommDebugMode::Key, CommDebugMode::Count> counts_;
  std::string table_;
};

// The record of a MemoryTimeline; it stays readable after the scope is closed.
class MemoryRecord {
 public:
  explicit MemoryRecord(std::int64_t resolution) : resolution_(resolution) {}
  void enter() {
    TORCH_CHECK(!timeline_, "this MemoryTimeline is already entered");
    timeline_ = std::make_unique<MemoryTimeline>(resolution_);
  }
  void leave() {
    if (!timeline_) return;
    peak_ = timeline_->peak();
    holders_ = timeline_->holders_at_peak();
    csv_ = timeline_->csv();
    svg_ = timeline_->svg();
    timeline_.reset();
  }
  std::int64_t live() const {
    TORCH_CHECK(timeline_, "MemoryTimeline.live: the timeline is not open");
    return timeline_->live();
  }
  void reset_peak() {
    TORCH_CHECK(timeline_, "MemoryTimeline.reset_peak: the timeline is not open");
    timeline_->reset_peak();
  }
  py::tuple peak() const {
    const auto& sample = timeline_ ? timeline_->peak() : peak_;
    return py::make_tuple(sample.bytes, sample.module, phase_name(sample.phase));
  }
  py::list holders_at_peak() const {
    py::list result;
    for (const auto& holder : timeline_ ? timeline_->holders_at_peak() : holders_)
      result.append(py::make_tuple(holder.module, phase_name(holder.phase), holder.bytes));
    return result;
  }
  std::string csv() const { return timeline_ ? timeline_->csv() : csv_; }
  std::string svg() const { return timeline_ ? timeline_->svg() : svg_; }

 private:
  std::int64_t resolution_;
  std::unique_ptr<MemoryTimeline> timeline_;
  MemoryTimeline::Sample peak_;
  std::vector<MemoryTimeline::Holder> holders_;
  std::string csv_, svg_;
};

void bind_memory(py::module_& module) {
  py::class_<MemoryRecord>(
      module, "MemoryTimeline",
      "While open, records the bytes that this rank allocates, and when it frees them. The record stays "
      "readable afterwards.\nA sample is kept where bytes differ from the last sample by at least resolution bytes.")
      .def(py::init<std::int64_t>(), py::arg("resolution") = 0)
      .def("__enter__",
           [](py::object self) {
             self.cast<MemoryRecord&>().enter();
             return self;
           })
      .def("__exit__", [](MemoryRecord& self, const py::args&) { self.leave(); })
      .def("live", &MemoryRecord::live, "Bytes allocated now.")
      .def("reset_peak", &MemoryRecord::reset_peak, "Restarts the search for the peak.")
      .def("peak", &MemoryRecord::peak, "(bytes, module, \"forward\" or \"backward\") at the peak.")
      .def("holders_at_peak", &MemoryRecord::holders_at_peak,
           "(module, phase, bytes) of the memory allocated at the peak, largest first.")
      .def("csv", &MemoryRecord::csv, "All samples: seconds,bytes,phase,module.")
      .def("svg", &MemoryRecord::svg, "A plot of bytes over time.");
}

void bind_memory_pool(py::module_& module) {
  module.def(
      "memory_pool_stats",
      [] {
        const MemoryPoolStats stats = memory_pool_stats();
        return py::dict(py::arg("cached_bytes") = stats.cached_bytes, py::arg("limit_bytes") = stats.limit_bytes,
                        py::arg("hits") = stats.hits, py::arg("misses") = stats.misses);
      },
      "The pool of memory for results of collectives in this process: cached_bytes, limit_bytes, hits, misses.");
  module.def("set_memory_pool_limit", &set_memory_pool_limit, py::arg("bytes"),
             "Sets the most unused bytes that the pool keeps; 0: none.");
  module.def("empty_memory_pool", &empty_memory_pool, "Returns the pool's unused memory to the system.");
}

py::list rows(const CommCounts& mode) {
  py::list result;
  for (const auto& [key, count] : mode.counts()) {
    result.append(py::make_tuple(key.kind, key.axis, key.module, phase_name(key.phase), count.calls, count.bytes));
  }
  return result;
}

const char* kind_name(Event::Kind kind) {
  if (kind == Event::Kind::op) return "op";
  return kind == Event::Kind::redistribute ? "redistribute" : "collective";
}

// The last owner may be a backward pass on a thread without the GIL, so the deleter acquires it.
std::shared_ptr<py::function> keep_alive(const py::function& fn) {
  return {new py::function(fn), [](py::function* last) {
            const py::gil_scoped_acquire lock;
            delete last;
          }};
}

std::unique_ptr<EventListener> listen(const py::function& fn) {
  return std::make_unique<EventListener>([fn = keep_alive(fn)](const Event& event) {
    const py::gil_scoped_acquire lock;
    const double seconds = std::chrono::duration<double>(event.end - event.begin).count();
    (*fn)(kind_name(event.kind), event.name, event.axis, event.bytes, seconds);
  });
}

ImplicitRedistribution parse_implicit_redistribution(const std::string& policy) {
  if (policy == "allow") return ImplicitRedistribution::allow;
  if (policy == "warn") return ImplicitRedistribution::warn;
  TORCH_CHECK_VALUE(policy == "error", "ImplicitRedistributionScope(\"", policy,
                    "\"): expected one of allow, warn, error");
  return ImplicitRedistribution::error;
}

Checks parse_checks(const std::string& checks) {
  if (checks == "calls") return Checks::calls;
  TORCH_CHECK_VALUE(checks == "values", "Checked(\"", checks, "\"): expected one of calls, values");
  return Checks::values;
}

void bind_scopes(py::module_& module) {
  bind_scope<Strict>(module, "Strict",
                     "While open, operators without a sharding rule and regular tensors among DTensors are errors.")
      .def(py::init([](bool strict) {
             return ScopeContextManager<Strict>(
                 [=] { return std::make_unique<Strict>(strict ? Strictness::strict : Strictness::relaxed); });
           }),
           py::arg("strict") = true);
  bind_scope<ImplicitRedistributionScope>(
      module, "ImplicitRedistributionScope",
      "While open, operators that would redistribute operands implicitly are refused or warned about.")
      .def(py::init([](const std::string& policy) {
             const ImplicitRedistribution wanted = parse_implicit_redistribution(policy);
             return ScopeContextManager<ImplicitRedistributionScope>(
                 [=] { return std::make_unique<ImplicitRedistributionScope>(wanted); });
           }),
           py::arg("policy") = "error");
  bind_scope<Checked>(
      module, "Checked",
      "While open, ranks must call the same operators (\"calls\"). \"values\" also compares replicas, and "
      "operators' results with those of unsharded operands.")
      .def(py::init([](const std::string& checks) {
             const Checks wanted = parse_checks(checks);
             return ScopeContextManager<Checked>([=] { return std::make_unique<Checked>(wanted); });
           }),
           py::arg("checks") = "values");
  bind_scope<BitIdentical>(
      module, "bit_identical",
      "While open, results have the same bits on every mesh; operators without such a form are errors.")
      .def(py::init([](std::int64_t block) {
             return ScopeContextManager<BitIdentical>([=] { return std::make_unique<BitIdentical>(block); });
           }),
           py::arg("block") = 64)
      .def_static("content_hash", &BitIdentical::content_hash, py::arg("tensor"),
                  py::call_guard<py::gil_scoped_release>(),
                  "SHA-256 in hexadecimal digits of a tensor's full contents, whatever the mesh and the placements.");
  bind_scope<NoTimeout>(module, "NoTimeout",
                        "While one is open in this process, waiting for other ranks has no time limit.")
      .def(py::init([] { return ScopeContextManager<NoTimeout>([] { return std::make_unique<NoTimeout>(); }); }));
  bind_scope<EventListener>(module, "EventListener",
                            "While open, fn(kind, name, axis, bytes, seconds) is called for each event of this rank.")
      .def(py::init(
               [](const py::function& fn) { return ScopeContextManager<EventListener>([=] { return listen(fn); }); }),
           py::arg("fn"));
}

}  // namespace

void bind_inspect(py::module_& module) {
  module.def(
      "explain", &explain_call, py::arg("fn"),
      "Runs fn(*args, **kwargs) and reports, for every operator on DTensors, the candidates, their costs and the "
      "choice.");
  py::class_<CommCounts>(module, "CommCounts")
      .def(py::init<>())
      .def("enter", &CommCounts::enter)
      .def("leave", &CommCounts::leave)
      .def("rows", &rows, "(kind, axis, module, phase, calls, bytes received) for each kind of collective.")
      .def("table", &CommCounts::table);
  bind_memory(module);
  bind_memory_pool(module);
  bind_scopes(module);
  module.def(
      "cache_stats",
      [] {
        const CacheStats stats = cache_stats();
        return py::dict(py::arg("hits") = stats.hits, py::arg("misses") = stats.misses,
                        py::arg("entries") = stats.entries, py::arg("evictions") = stats.evictions,
                        py::arg("key_lookups") = stats.key_lookups, py::arg("boxed_hits") = stats.boxed_hits);
      },
      "Counters of this thread's cache of sharding decisions.");
  module.def("clear_cache", &clear_cache);
  module.def(
      "visualize_sharding_text",
      [](const std::vector<std::int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements) {
        return visualize_sharding(sizes, mesh, placements);
      },
      py::arg("sizes"), py::arg("mesh"), py::arg("placements"), "A text diagram of the ranks that store each part.");
  module.def(
      "visualize_sharding_svg",
      [](const std::vector<std::int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements) {
        return visualize_sharding_svg(sizes, mesh, placements);
      },
      py::arg("sizes"), py::arg("mesh"), py::arg("placements"), "An SVG diagram of the ranks that store each part.");
}

}  // namespace dtensor::python
