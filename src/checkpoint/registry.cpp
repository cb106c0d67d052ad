// The parts of a training state: each tells what it has to save, and takes back what was read.
#include <bit>
#include <utility>

#include "checkpoint/load.h"
#include "dtensor/random.h"

namespace dtensor {

struct Checkpoint::Part {
  virtual ~Part() = default;
  virtual void save(StateTensors& tensors, CheckpointValues& values) const = 0;

  struct Reading {
    const files::Loader& loader;
    files::Problems& problems;
    bool allow_missing;
    StateTensors targets = {};
    std::map<std::string, bool> known = {};              // values that a part has asked for
    std::vector<std::function<void()>> afterwards = {};  // once all is read and verified

    template <class Value>
    void value(const std::string& name, std::function<void(const Value&)> take);
  };
  virtual void load(Reading& reading) = 0;
};

namespace {

using Part = Checkpoint::Part;

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::optional<CheckpointValue> converted(const CheckpointValue& value, const CheckpointValue& like) {
  if (value.index() == like.index()) return value;
  const auto* integer = std::get_if<std::int64_t>(&value);
  if (integer != nullptr && std::holds_alternative<double>(like)) return static_cast<double>(*integer);
  return {};
}

}  // namespace

template <class Value>
void Checkpoint::Part::Reading::value(const std::string& name, std::function<void(const Value&)> take) {
  known[name] = true;
  const auto found = loader.values().find(name);
  if (found == loader.values().end()) {
    if (!allow_missing) problems.missing.push_back(name);
    return;
  }
  const auto value = converted(found->second, Value{});
  if (!value) {
    problems.mismatched.push_back("value '" + name + "' is of another type there");
    return;
  }
  afterwards.emplace_back([take = std::move(take), v = std::get<Value>(*value)] { take(v); });
}

namespace {

struct TensorsPart final : Part {
  TensorsPart(std::string p, NamedTensors t) : prefix(std::move(p)), tensors(std::move(t)) {}
  void save(StateTensors& out, CheckpointValues&) const override {
    for (const auto& [name, tensor] : tensors) out.emplace_back(joined(prefix, name), *tensor);
  }
  void load(Reading& reading) override {
    for (const auto& [name, tensor] : tensors) reading.targets.emplace_back(joined(prefix, name), *tensor);
  }
  std::string prefix;
  NamedTensors tensors;
};

struct HandlesPart final : Part {
  HandlesPart(const std::string& prefix, const StateTensors& list) {
    for (const auto& [name, tensor] : list) handles.emplace_back(joined(prefix, name), tensor);
  }
  void save(StateTensors& out, CheckpointValues&) const override {
    out.insert(out.end(), handles.begin(), handles.end());
  }
  void load(Reading& reading) override {
    reading.targets.insert(reading.targets.end(), handles.begin(), handles.end());
  }
  StateTensors handles;
};

template <class Value>
struct ValuePart final : Part {
  ValuePart(std::string n, Value& v) : name(std::move(n)), value(v) {}
  void save(StateTensors&, CheckpointValues& values) const override { values.emplace(name, value); }
  void load(Reading& reading) override {
    reading.value<Value>(name, [this](const Value& read) { value = read; });
  }
  std::string name;
  Value& value;
};

struct ScalerPart final : Part {
  ScalerPart(std::string p, GradScaler& s) : prefix(std::move(p)), scaler(s) {}
  void save(StateTensors&, CheckpointValues& values) const override {
    values.emplace(joined(prefix, "scale"), scaler.state().scale);
    values.emplace(joined(prefix, "good_steps"), scaler.state().good_steps);
  }
  void load(Reading& reading) override {
    reading.value<double>(joined(prefix, "scale"), [this](double scale) {
      scaler.set_state({scale, scaler.state().good_steps});
    });
    reading.value<std::int64_t>(joined(prefix, "good_steps"), [this](std::int64_t steps) {
      scaler.set_state({scaler.state().scale, steps});
    });
  }
  std::string prefix;
  GradScaler& scaler;
};

struct RandomPart final : Part {
  RandomPart(std::string p, DeviceMesh m) : prefix(std::move(p)), mesh(std::move(m)) {}
  void save(StateTensors&, CheckpointValues& values) const override {
    const RngState state = get_rng_state(mesh);
    values.emplace(joined(prefix, "seed"), std::bit_cast<std::int64_t>(state.seed));
    values.emplace(joined(prefix, "counter"), std::bit_cast<std::int64_t>(state.counter));
  }
  void load(Reading& reading) override {
    const auto number = [&](const char* what, std::uint64_t RngState::*field) {
      reading.value<std::int64_t>(joined(prefix, what), [this, field](std::int64_t read) {
        RngState state = get_rng_state(mesh);
        state.*field = std::bit_cast<std::uint64_t>(read);
        set_rng_state(mesh, state);
      });
    };
    number("seed", &RngState::seed);
    number("counter", &RngState::counter);
  }
  std::string prefix;
  DeviceMesh mesh;
};

struct OptimizerPart final : Part {
  OptimizerPart(std::string p, Optimizer& o) : prefix(std::move(p)), optimizer(o) {}
  void save(StateTensors& tensors, CheckpointValues& values) const override {
    const OptimizerState state = optimizer.state_dict();
    for (const auto& [name, tensor] : state.tensors) tensors.emplace_back(joined(prefix, name), tensor);
    for (const auto& [name, value] : state.scalars) values.emplace(joined(prefix, name), value);
  }
  void load(Reading& reading) override {
    const std::string begin = joined(prefix, "");
    StateScalars scalars;
    for (const auto& [name, value] : reading.loader.values()) {
      if (!name.starts_with(begin)) continue;
      reading.known[name] = true;
      if (const auto number = converted(value, double{})) {
        scalars.emplace_back(name.substr(begin.size()), std::get<double>(*number));
      }
    }
    try {
      StateTargets targets = optimizer.state_targets(
          scalars, [&](const std::string& name) { return reading.loader.find(begin + name) != nullptr; });
      for (auto& [name, tensor] : targets.tensors) reading.targets.emplace_back(begin + name, tensor);
      reading.afterwards.emplace_back([commit = std::move(targets.commit)] { commit(); });
    } catch (const c10::Error& error) {  // alike on every rank
      reading.problems.mismatched.push_back(error.what_without_backtrace());
    }
  }
  std::string prefix;
  Optimizer& optimizer;
};

}  // namespace

Checkpoint& Checkpoint::add(std::unique_ptr<Part> part) {
  parts_.push_back(std::move(part));
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, at::Tensor& tensor) {
  return add("", NamedTensors{{name, &tensor}});
}
Checkpoint& Checkpoint::add(const std::string& prefix, const NamedTensors& tensors) {
  return add(std::make_unique<TensorsPart>(prefix, tensors));
}
Checkpoint& Checkpoint::add(const std::string& prefix, const StateTensors& handles) {
  return add(std::make_unique<HandlesPart>(prefix, handles));
}
Checkpoint& Checkpoint::add(const std::string& prefix, Optimizer& optimizer) {
  return add(std::make_unique<OptimizerPart>(prefix, optimizer));
}
Checkpoint& Checkpoint::add(const std::string& prefix, GradScaler& scaler) {
  return add(std::make_unique<ScalerPart>(prefix, scaler));
}
Checkpoint& Checkpoint::add(const std::string& name, std::int64_t& value) {
  return add(std::make_unique<ValuePart<std::int64_t>>(name, value));
}
Checkpoint& Checkpoint::add(const std::string& name, double& value) {
  return add(std::make_unique<ValuePart<double>>(name, value));
}
Checkpoint& Checkpoint::add(const std::string& name, bool& value) {
  return add(std::make_unique<ValuePart<bool>>(name, value));
}
Checkpoint& Checkpoint::add(const std::string& name, std::string& value) {
  return add(std::make_unique<ValuePart<std::string>>(name, value));
}
Checkpoint& Checkpoint::add_random(const std::string& prefix, const DeviceMesh& mesh) {
  return add(std::make_unique<RandomPart>(prefix, mesh));
}

void Checkpoint::save(const std::string& directory, const Communicator& ranks, const SaveOptions& options) const {
  StateTensors tensors;
  CheckpointValues values;
  for (const auto& part : parts_) part->save(tensors, values);
  save_state(directory, ranks, tensors, values, options);
}

PendingSave Checkpoint::save_async(const std::string& directory, const Communicator& ranks,
                                   const SaveOptions& options) const {
  StateTensors tensors;
  CheckpointValues values;
  for (const auto& part : parts_) part->save(tensors, values);
  return save_state_async(directory, ranks, tensors, values, options);
}

void Checkpoint::load(const std::string& path, const Communicator& ranks, const LoadOptions& options) {
  files::Loader loader(path, ranks, options);
  files::Problems problems;
  Part::Reading reading{loader, problems, options.allow_missing};
  for (const auto& part : parts_) part->load(reading);
  for (const auto& [name, value] : loader.values()) {
    if (!options.allow_unexpected && !reading.known.contains(name)) problems.unexpected.push_back(name);
    problems.there.push_back(name);
  }
  for (const auto& [name, known] : reading.known) problems.here.push_back(name);
  loader.read(reading.targets, std::move(problems));
  for (const auto& finish : reading.afterwards) finish();
}

}  // namespace dtensor
