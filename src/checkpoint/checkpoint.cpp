// The parts of a training state: each part lists what to save and restores what was loaded.
#include <bit>
#include <cmath>
#include <set>
#include <utility>

#include "checkpoint/collective_errors.h"
#include "checkpoint/load/load.h"
#include "dtensor/random.h"
#include "internal/simulated.h"

namespace dtensor {

namespace {

// State of one load.
struct Reading {
  const files::Loader& loader;
  files::LoadProblems& problems;
  bool allow_missing;
  StateTensors targets = {};
  std::map<std::string, bool> known = {};  // values that a part requests
  // Run after everything is read and verified: first optimizers, whose commit may throw, then values and random state,
  // which cannot fail. So a load that throws does not change the latter.
  std::vector<std::function<void()>> of_optimizers = {}, of_values = {};
  // Parts that take all remaining values of a prefix. They run after the other parts, longest prefix first.
  std::multimap<std::size_t, std::function<void()>, std::greater<>> by_prefix = {};

  // `fits`: whether a value is valid; empty: all are.
  template <class Value>
  void value(const std::string& name, std::function<void(const Value&)> take,
             const std::function<bool(const Value&)>& fits = {});
};

}  // namespace

struct Checkpoint::Part {
  std::function<void(StateTensors&, CheckpointValues&)> save;
  std::function<void(Reading&)> load;
};

namespace {

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::optional<CheckpointValues::mapped_type> converted(const CheckpointValues::mapped_type& value,
                                                       const CheckpointValues::mapped_type& like) {
  if (value.index() == like.index()) return value;
  const auto* integer = std::get_if<std::int64_t>(&value);
  if (integer != nullptr && std::holds_alternative<double>(like)) return static_cast<double>(*integer);
  return {};
}

void put(CheckpointValues& values, const std::string& name, const CheckpointValues::mapped_type& value) {
  TORCH_CHECK(values.emplace(name, value).second, "duplicate value name in the checkpoint: '", name, "'");
}

template <class Value>
void Reading::value(const std::string& name, std::function<void(const Value&)> take,
                    const std::function<bool(const Value&)>& fits) {
  known[name] = true;
  const auto found = loader.values().find(name);
  if (found == loader.values().end()) {
    if (!allow_missing) problems.missing.push_back(name);
    return;
  }
  const auto value = converted(found->second, Value{});
  if (!value) {
    problems.mismatched.push_back("value '" + name + "' has another type in the checkpoint");
    return;
  }
  if (fits && !fits(std::get<Value>(*value))) {
    problems.mismatched.push_back(
        c10::str("value '", name, "' in the checkpoint is invalid: ", std::get<Value>(*value)));
    return;
  }
  of_values.emplace_back([take = std::move(take), v = std::get<Value>(*value)] { take(v); });
}

template <class Value>
Checkpoint::Part value_part(const std::string& name, Value& value) {
  return {
      [name, &value](StateTensors&, CheckpointValues& values) { put(values, name, value); },
      [name, &value](Reading& reading) { reading.value<Value>(name, [&value](const Value& read) { value = read; }); }};
}

// `list(to)` appends the part's tensors.
Checkpoint::Part tensors_part(std::function<void(StateTensors&)> list) {
  return {[list](StateTensors& out, CheckpointValues&) { list(out); },
          [list](Reading& reading) { list(reading.targets); }};
}

// Calls `fn` with the name, the name without `begin`, and the value of each value whose name begins so.
template <class Fn>
void each_value(const CheckpointValues& values, const std::string& begin, Fn&& fn) {
  for (auto at = values.lower_bound(begin); at != values.end() && at->first.starts_with(begin); ++at)
    fn(at->first, at->first.substr(begin.size()), at->second);
}

// Loads the values with this prefix: those that `values` contains, and others that `takes` accepts. Types are as saved,
// but integers are converted for entries of type double.
void load_values(Reading& reading, const std::string& begin, CheckpointValues& values,
                 const std::function<bool(const std::string&)>& takes) {
  CheckpointValues read;
  each_value(reading.loader.values(), begin, [&](const auto& name, const std::string& own, const auto& value) {
    const auto former = values.find(own);
    const bool listed = former != values.end();
    if (reading.known.contains(name) || (!listed && takes && !takes(own))) return;
    read.emplace(own, listed ? converted(value, former->second).value_or(value) : value);
    reading.known.emplace(name, true);
  });
  for (const auto& [own, value] : values) {
    if (!read.contains(own) && !reading.allow_missing) reading.problems.missing.push_back(begin + own);
  }
  reading.of_values.emplace_back([&values, read] {
    for (const auto& [name, value] : read) values.insert_or_assign(name, value);
  });
}

// Loads the scalars with this prefix. Every optimizer saves some, at least its learning rates.
void load_optimizer(Reading& reading, const std::string& begin, Optimizer& optimizer) {
  OptimizerState::Scalars scalars;
  each_value(reading.loader.values(), begin, [&](const auto& name, const std::string& own, const auto& value) {
    if (!reading.known.emplace(name, true).second) return;
    if (const auto number = converted(value, double{})) scalars.emplace_back(own, std::get<double>(*number));
  });
  try {
    StateTargets targets = optimizer.state_targets(
        scalars, [&](const std::string& name) { return reading.loader.contains(begin + name); });
    if (scalars.empty() && targets.tensors.empty()) {  // the optimizer does not change
      if (!reading.allow_missing) reading.problems.missing.push_back(begin + "group0.lr");
      return;
    }
    for (auto& [name, tensor] : targets.tensors) reading.targets.emplace_back(begin + name, tensor);
    reading.of_optimizers.emplace_back([commit = std::move(targets.commit)] { commit(); });
  } catch (const c10::Error& error) {  // the same on every rank
    reading.problems.mismatched.push_back(error.what_without_backtrace());
  }
}

// Of the names that this rank does not request, returns those that no rank requests. Collective.
std::set<std::string> unrequested_on_all_ranks(const Communicator& ranks, std::set<std::string> own) {
  std::vector<std::int64_t> count{std::ssize(own)};
  reduce_numbers(ranks, count, ReduceOp::max);
  if (count[0] == 0) return own;
  std::string text;
  for (const auto& name : own) text += name + '\0';
  for (const std::string& names : all_gather_strings(ranks, text)) {
    std::set<std::string> theirs;
    for (std::size_t at = 0, end; at < names.size(); at = end + 1) {
      end = names.find('\0', at);
      theirs.insert(names.substr(at, end - at));
    }
    std::erase_if(own, [&](const std::string& name) { return !theirs.contains(name); });
  }
  return own;
}

}  // namespace

Checkpoint& Checkpoint::add(std::unique_ptr<Part> part) {
  parts_.push_back(std::move(part));
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, at::Tensor& tensor) {
  return add("", NamedTensors{{name, &tensor}});
}
Checkpoint& Checkpoint::add(const std::string& prefix, const NamedTensors& tensors) {
  return add(std::make_unique<Part>(tensors_part([prefix, tensors](StateTensors& to) {
    for (const auto& [name, tensor] : tensors) to.emplace_back(joined(prefix, name), *tensor);
  })));
}
Checkpoint& Checkpoint::add(const std::string& prefix, const StateTensors& handles) {
  return add(std::make_unique<Part>(tensors_part([prefix, handles](StateTensors& to) {
    for (const auto& [name, tensor] : handles) to.emplace_back(joined(prefix, name), tensor);
  })));
}
Checkpoint& Checkpoint::add(const std::string& prefix, Optimizer& optimizer) {
  const auto save = [prefix, &optimizer](StateTensors& tensors, CheckpointValues& values) {
    const OptimizerState state = optimizer.state_dict();
    for (const auto& [name, tensor] : state.tensors) tensors.emplace_back(joined(prefix, name), tensor);
    for (const auto& [name, value] : state.scalars) put(values, joined(prefix, name), value);
  };
  const auto load = [begin = joined(prefix, ""), &optimizer](Reading& reading) {
    reading.by_prefix.emplace(begin.size(), [&] { load_optimizer(reading, begin, optimizer); });
  };
  return add(std::make_unique<Part>(Part{save, load}));
}
Checkpoint& Checkpoint::add(const std::string& prefix, GradScaler& scaler) {
  const std::string scale = joined(prefix, "scale"), good_steps = joined(prefix, "good_steps");
  const auto save = [=, &scaler](StateTensors&, CheckpointValues& values) {
    put(values, scale, scaler.state().scale);
    put(values, good_steps, scaler.state().good_steps);
  };
  const auto load = [=, &scaler](Reading& reading) {
    // Checks what set_state() would reject, so that set_state() cannot fail after other parts have changed.
    reading.value<double>(
        scale,
        [&](double read) {
          scaler.set_state({read, scaler.state().good_steps});
        },
        [](double read) { return read > 0 && std::isfinite(read); });
    reading.value<std::int64_t>(
        good_steps,
        [&](std::int64_t n) {
          scaler.set_state({scaler.state().scale, n});
        },
        [](std::int64_t n) { return n >= 0; });
  };
  return add(std::make_unique<Part>(Part{save, load}));
}
Checkpoint& Checkpoint::add(const std::string& prefix, CheckpointValues& values,
                            const std::function<bool(const std::string&)>& takes) {
  const auto save = [prefix, &values](StateTensors&, CheckpointValues& to) {
    for (const auto& [name, value] : values) put(to, joined(prefix, name), value);
  };
  const auto load = [begin = joined(prefix, ""), &values, takes](Reading& reading) {
    reading.by_prefix.emplace(begin.size(), [&] { load_values(reading, begin, values, takes); });
  };
  return add(std::make_unique<Part>(Part{save, load}));
}
Checkpoint& Checkpoint::add(const std::string& name, std::int64_t& value) {
  return add(std::make_unique<Part>(value_part(name, value)));
}
Checkpoint& Checkpoint::add(const std::string& name, double& value) {
  return add(std::make_unique<Part>(value_part(name, value)));
}
Checkpoint& Checkpoint::add(const std::string& name, bool& value) {
  return add(std::make_unique<Part>(value_part(name, value)));
}
Checkpoint& Checkpoint::add(const std::string& name, std::string& value) {
  return add(std::make_unique<Part>(value_part(name, value)));
}
Checkpoint& Checkpoint::add_random(const std::string& prefix, const DeviceMesh& mesh) {
  const std::string seed = joined(prefix, "seed"), counter = joined(prefix, "counter");
  const auto save = [=](StateTensors&, CheckpointValues& values) {
    put(values, seed, std::bit_cast<std::int64_t>(get_rng_state(mesh).seed));
    put(values, counter, std::bit_cast<std::int64_t>(get_rng_state(mesh).counter));
  };
  const auto load = [=](Reading& reading) {
    const auto number = [&](const std::string& name, std::uint64_t RngState::*field) {
      reading.value<std::int64_t>(name, [mesh, field](std::int64_t read) {
        RngState state = get_rng_state(mesh);
        state.*field = std::bit_cast<std::uint64_t>(read);
        set_rng_state(mesh, state);
      });
    };
    number(seed, &RngState::seed);
    number(counter, &RngState::counter);
  };
  return add(std::make_unique<Part>(Part{save, load}));
}

std::pair<StateTensors, CheckpointValues> Checkpoint::collect() const {
  std::pair<StateTensors, CheckpointValues> state;
  for (const auto& part : parts_) part->save(state.first, state.second);
  return state;
}

void Checkpoint::save(const std::string& directory, const Communicator& ranks, const SaveOptions& options) const {
  const auto [tensors, values] = collect();
  save_state(directory, ranks, tensors, values, options);
}

PendingSave Checkpoint::save_async(const std::string& directory, const Communicator& ranks,
                                   const SaveOptions& options) const {
  const auto [tensors, values] = collect();
  return save_state_async(directory, ranks, tensors, values, options);
}

void Checkpoint::load(const std::string& path, const Communicator& ranks, const LoadOptions& options) {
  if (is_simulating()) return;
  files::Loader loader(path, ranks, options);
  files::LoadProblems problems;
  Reading reading{loader, problems, options.allow_missing};
  for (const auto& part : parts_) part->load(reading);
  for (const auto& [length, load] : reading.by_prefix) load();
  std::set<std::string> unrequested;
  for (const auto& [name, value] : loader.values()) {
    if (!options.allow_unexpected && !reading.known.contains(name)) unrequested.insert(name);
    problems.available.push_back(name);
  }
  for (const auto& name : unrequested_on_all_ranks(ranks, std::move(unrequested))) problems.unexpected.push_back(name);
  for (const auto& [name, known] : reading.known) problems.requested.push_back(name);
  loader.read(reading.targets, std::move(problems));
  for (const auto& finish : reading.of_optimizers) finish();
  for (const auto& finish : reading.of_values) finish();
}

}  // namespace dtensor
