// The library's optimizers and gradient clipping; optim.py defines the user-facing classes.
#include "bind.h"

namespace dtensor::python {
namespace {

using Options = std::map<std::string, std::variant<bool, std::int64_t, double, std::string>>;
using Groups = std::vector<std::tuple<std::vector<at::Tensor>, Options, std::vector<std::string>>>;

// Moves one option into `field`; the options left in `options` at the end are unknown.
template <class T>
void take(Options& options, const char* name, T& field) {
  const auto found = options.find(name);
  if (found == options.end()) return;
  field = std::visit(
      [&](const auto& value) -> T {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) return static_cast<T>(value);
        TORCH_CHECK_TYPE(false, "option ", name, ": expected a number, got \"", value, "\"");
      },
      found->second);
  options.erase(found);
}

void read(Options& o, AdamWOptions& to) {
  take(o, "beta1", to.beta1), take(o, "beta2", to.beta2), take(o, "eps", to.eps);
  take(o, "weight_decay", to.weight_decay), take(o, "fused", to.fused);
}
void read(Options& o, SGDOptions& to) {
  take(o, "momentum", to.momentum), take(o, "dampening", to.dampening), take(o, "weight_decay", to.weight_decay);
  take(o, "nesterov", to.nesterov), take(o, "fused", to.fused);
}
void read(Options& o, AdagradOptions& to) {
  take(o, "lr_decay", to.lr_decay), take(o, "weight_decay", to.weight_decay), take(o, "eps", to.eps);
  take(o, "initial_accumulator_value", to.initial_sum);
}
void read(Options& o, MuonOptions& to) {
  take(o, "momentum", to.momentum), take(o, "weight_decay", to.weight_decay), take(o, "nesterov", to.nesterov);
  take(o, "ns_steps", to.iterations), take(o, "bfloat16", to.bfloat16), take(o, "match_adamw_rms", to.match_adamw_rms);
}
void read(Options& o, ShampooOptions& to) {
  bool graft = to.grafting == Grafting::adam;
  take(o, "grafting", graft);
  to.grafting = graft ? Grafting::adam : Grafting::none;
  take(o, "beta1", to.beta1), take(o, "beta2", to.beta2), take(o, "eps", to.eps);
  take(o, "weight_decay", to.weight_decay), take(o, "graft_beta2", to.graft_beta2);
  take(o, "graft_eps", to.graft_eps), take(o, "frequency", to.frequency), take(o, "start", to.start);
  take(o, "block_size", to.block_size), take(o, "merge_to", to.merge_to);
}

template <class Settings>
void read_all(Options options, Settings& to) {
  take(options, "lr", to.lr);
  read(options, to);
  TORCH_CHECK_TYPE(options.empty(), "unknown option ", options.begin()->first);
}

template <class Made, class Settings>
std::unique_ptr<Optimizer> make(Groups groups) {
  std::vector<ParameterGroup<Settings>> result;
  for (auto& [parameters, options, names] : groups) {
    ParameterGroup<Settings> group{parameters, {}, names};
    read_all(std::move(options), group.options);
    result.push_back(std::move(group));
  }
  return std::make_unique<Made>(result);
}

// Rejects changes of options that determine the shapes of existing state.
template <class Settings>
void check_change(const Settings& /*from*/, const Settings& /*to*/) {}
void check_change(const ShampooOptions& from, const ShampooOptions& to) {
  TORCH_CHECK_VALUE(from.block_size == to.block_size && from.merge_to == to.merge_to,
                    "Shampoo: block_size and merge_to determine the shapes of the state and cannot change; expected ",
                    from.block_size, " and ", from.merge_to, " as before");
}

// Sets the options of a group, from its next step on. Returns false if `optimizer` is not a `Made`.
template <class Made, class Settings>
bool set(Optimizer& optimizer, std::size_t group, const Options& options) {
  auto* made = dynamic_cast<Made*>(&optimizer);
  if (made == nullptr) return false;
  Settings to = made->options(group);
  read_all(options, to);
  check_change(made->options(group), to);
  Settings checked = to;
  checked.lr = 0;  // schedules may end below zero by rounding, and torch.optim accepts that
  const Made validator(std::vector<ParameterGroup<Settings>>{{{}, checked, {}}});  // the constructor checks the options
  made->options(group) = to;
  return true;
}

void set_options(Optimizer& optimizer, std::size_t group, const Options& options) {
  const bool known =
      set<AdamW, AdamWOptions>(optimizer, group, options) || set<SGD, SGDOptions>(optimizer, group, options) ||
      set<Adagrad, AdagradOptions>(optimizer, group, options) || set<Muon, MuonOptions>(optimizer, group, options) ||
      set<Shampoo, ShampooOptions>(optimizer, group, options);
  TORCH_INTERNAL_ASSERT(known);
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& kind, Groups groups) {
  if (kind == "AdamW") return make<AdamW, AdamWOptions>(std::move(groups));
  if (kind == "SGD") return make<SGD, SGDOptions>(std::move(groups));
  if (kind == "Adagrad") return make<Adagrad, AdagradOptions>(std::move(groups));
  if (kind == "Muon") return make<Muon, MuonOptions>(std::move(groups));
  TORCH_CHECK_VALUE(kind == "Shampoo", "expected AdamW, SGD, Adagrad, Muon or Shampoo, got ", kind);
  return make<Shampoo, ShampooOptions>(std::move(groups));
}

}  // namespace

void bind_optim(py::module_& module) {
  py::class_<Optimizer>(module, "Optimizer")
      .def("step", &Optimizer::step, ReleaseGil())
      .def("set_options", &set_options)
      .def(
          "state_dict",
          [](const Optimizer& o) {
            OptimizerState state = o.state_dict();
            return std::pair(std::move(state.tensors), std::move(state.scalars));
          },
          ReleaseGil())
      .def(
          "load_state_dict",
          [](Optimizer& o, StateTensors tensors, OptimizerState::Scalars scalars) {
            o.load_state_dict({std::move(tensors), std::move(scalars)});
          },
          ReleaseGil());
  module.def("make_optimizer", &make_optimizer, ReleaseGil());
  module.def(
      "get_total_norm",
      [](const std::vector<at::Tensor>& tensors, double norm_type, bool error_if_nonfinite) {
        return get_total_norm(tensors, {norm_type, error_if_nonfinite});
      },
      ReleaseGil());
  module.def(
      "clip_grad_norm_",
      [](const std::vector<at::Tensor>& parameters, double max_norm, double norm_type, bool error_if_nonfinite) {
        return clip_grad_norm_(parameters, max_norm, {norm_type, error_if_nonfinite});
      },
      ReleaseGil());
}

}  // namespace dtensor::python
