// Mixture of experts. A Python module owns the parameters; each forward pass assigns them to the C++ module, so
// replacing a parameter (fully_shard, functional_call, a copy) needs no other step.
#include "dtensor/moe.h"

#include "bind.h"

namespace dtensor::python {
namespace {

template <class Value>
Value one_of(const char* what, const std::string& name, const std::vector<std::pair<const char*, Value>>& all) {
  std::string known;
  for (const auto& [text, value] : all) {
    if (name == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  TORCH_CHECK_VALUE(false, "MixtureOfExperts(", what, "=\"", name, "\"): expected one of ", known);
}

// A routing strategy written in Python: choose(scores, top_k, bias) returns int64 [tokens, choices].
class PythonStrategy final : public RoutingStrategy {
 public:
  PythonStrategy(std::function<at::Tensor(const at::Tensor&, std::int64_t, const at::Tensor&)> choose, std::string name)
      : choose_(std::move(choose)), name_(std::move(name)) {}
  Choice choose(const at::Tensor& scores, const RouterOptions& options, const TokenLayout&,
                const at::Tensor& bias) const override {
    const at::Tensor none = bias.defined() ? bias : at::zeros({scores.size(-1)}, scores.options());
    Choice choice;
    choice.experts = choose_(scores, options.top_k, none);
    TORCH_CHECK(choice.experts.dim() == 2 && choice.experts.size(0) == scores.size(0) &&
                    choice.experts.scalar_type() == at::kLong,
                name_, ".choose() returned a tensor ", choice.experts.sizes(), " of dtype ",
                choice.experts.scalar_type(), ", expected int64 [tokens = ", scores.size(0), ", choices]");
    choice.complete = false;
    choice.same_width = false;
    return choice;
  }
  const char* name() const override { return name_.c_str(); }

 private:
  std::function<at::Tensor(const at::Tensor&, std::int64_t, const at::Tensor&)> choose_;
  std::string name_;
};

class Layer {
 public:
  explicit Layer(const MoeOptions& options) : module_(options) {
    auto* own = module_.balancer();
    if (own && own->counts.is_meta())
      own->counts = LoadBalancer(own->counts.size(0), own->rate).counts;  // Python does not assign the counts
  }
  Named parameters() {
    Named result;
    for (const auto& [name, slot] : module_.named_parameters()) result.emplace_back(name, *slot);
    return result;
  }
  // The bias of the load balancer.
  Named buffers() {
    Named result;
    for (const auto& [name, slot] : module_.named_buffers()) result.emplace_back(name, *slot);
    return result;
  }
  // Assigns parameters, then buffers.
  void assign(const std::vector<at::Tensor>& tensors) {
    NamedTensors slots = module_.named_parameters();
    const NamedTensors more = module_.named_buffers();
    slots.insert(slots.end(), more.begin(), more.end());
    TORCH_CHECK(slots.size() == tensors.size(), "MixtureOfExperts: expected ", slots.size(),
                " parameters and buffers, got ", tensors.size());
    for (std::size_t i = 0; i < slots.size(); ++i) *slots[i].second = tensors[i];
  }
  std::pair<at::Tensor, std::optional<at::Tensor>> run(const at::Tensor& x, const std::vector<at::Tensor>& tensors,
                                                       bool training) {
    assign(tensors);
    module_.train(training);
    auto out = module_.run(x);
    return {std::move(out.y), out.loss.defined() ? std::optional(std::move(out.loss)) : std::nullopt};
  }
  void set_dispatch(const std::string& kind, double factor, const std::string& drop) {
    CapacityOptions capacity;
    capacity.factor = factor;
    capacity.drop = one_of<CapacityOptions::Drop>(
        "drop", drop,
        {{"position", CapacityOptions::Drop::position}, {"probability", CapacityOptions::Drop::probability}});
    module_.set_dispatch(one_of<DispatchKind>("dispatch", kind,
                                              {{"all_to_all", DispatchKind::all_to_all},
                                               {"all_gather", DispatchKind::all_gather},
                                               {"capacity", DispatchKind::capacity},
                                               {"equal", DispatchKind::equal},
                                               {"padded", DispatchKind::padded}}),
                         capacity);
  }
  std::pair<at::Tensor, std::int64_t> stats() const { return {module_.stats().load, module_.stats().dropped}; }
  void set_expert_parallel(const DeviceMesh& mesh, const ExpertParallelOptions& options) {
    apply_expert_parallel(module_, mesh, options);
  }
  LoadBalancer* balancer() { return module_.balancer(); }

 private:
  MixtureOfExperts module_;
};

void update_balancers(const std::vector<Layer*>& layers, const Communicator& ranks) {
  std::vector<LoadBalancer*> balancers;
  for (auto* layer : layers) {
    if (layer->balancer() != nullptr) balancers.push_back(layer->balancer());
  }
  update_load_balancers(balancers, ranks);
}

RouterOptions router_options(const py::dict& given) {
  RouterOptions router;
  router.experts = given["experts"].cast<std::int64_t>();
  router.top_k = given["top_k"].cast<std::int64_t>();
  router.score = one_of<RouterScore>("score", given["score"].cast<std::string>(),
                                     {{"softmax", RouterScore::softmax}, {"sigmoid", RouterScore::sigmoid}});
  router.choice = one_of<RouterChoice>("choice", given["choice"].cast<std::string>(),
                                       {{"tokens", RouterChoice::tokens},
                                        {"experts", RouterChoice::experts},
                                        {"round_robin", RouterChoice::round_robin}});
  router.normalize = given["normalize"].cast<bool>();
  router.scale = given["scale"].cast<double>();
  router.groups = given["groups"].cast<std::int64_t>();
  router.top_groups = given["top_groups"].cast<std::int64_t>();
  router.jitter = given["jitter"].cast<double>();
  router.aux_loss = given["aux_loss"].cast<double>();
  router.sequence_aux_loss = given["sequence_aux_loss"].cast<double>();
  router.z_loss = given["z_loss"].cast<double>();
  router.batch_tokens = given["batch_tokens"].cast<std::int64_t>();
  router.expert_capacity_factor = given["expert_capacity_factor"].cast<double>();
  return router;
}

ExpertActivation activation(const std::string& name) {
  return one_of<ExpertActivation>("activation", name,
                                  {{"swiglu", ExpertActivation::swiglu},
                                   {"geglu", ExpertActivation::geglu},
                                   {"glu", ExpertActivation::glu},
                                   {"gelu", ExpertActivation::gelu},
                                   {"silu", ExpertActivation::silu},
                                   {"relu", ExpertActivation::relu}});
}

ExpertBackend backend(const std::string& name) {
  return one_of<ExpertBackend>("backend", name,
                               {{"automatic", ExpertBackend::automatic},
                                {"loop", ExpertBackend::loop},
                                {"batched", ExpertBackend::batched},
                                {"grouped", ExpertBackend::grouped}});
}

MoeOptions moe_options(const py::dict& given) {
  MoeOptions options;
  options.hidden = given["hidden"].cast<std::int64_t>();
  options.ffn = given["ffn"].cast<std::int64_t>();
  options.shared_ffn = given["shared_ffn"].cast<std::int64_t>();
  options.shared_gate = given["shared_gate"].cast<bool>();
  options.balance_rate = given["balance_rate"].cast<double>();
  options.score_before_experts = given["score_before_experts"].cast<bool>();
  options.scale_expert_gradients = given["scale_expert_gradients"].cast<bool>();
  options.tensor = at::TensorOptions(given["dtype"].cast<at::ScalarType>())
                       .device(c10::Device(given["device"].cast<std::string>()));  // meta: existing tensors follow
  options.router = router_options(given);
  options.experts.activation = activation(given["activation"].cast<std::string>());
  options.experts.backend = backend(given["backend"].cast<std::string>());
  return options;
}

}  // namespace

void bind_moe(py::module_& module) {
  py::class_<Layer>(module, "MoeLayer")
      .def(py::init([](const py::dict& options, const py::object& choose, const std::string& name) {
        MoeOptions given = moe_options(options);
        if (!choose.is_none()) {
          given.router.strategy = std::make_shared<PythonStrategy>(
              choose.cast<std::function<at::Tensor(const at::Tensor&, std::int64_t, const at::Tensor&)>>(), name);
        }
        return std::make_unique<Layer>(given);
      }))
      .def("parameters", &Layer::parameters)
      .def("buffers", &Layer::buffers)
      .def("run", &Layer::run, ReleaseGil())
      .def("assign", &Layer::assign)
      .def("set_dispatch", &Layer::set_dispatch)
      .def("stats", &Layer::stats)
      .def(
          "set_expert_parallel",
          [](Layer& layer, const DeviceMesh& mesh, std::string ep, std::string edp, std::string etp) {
            layer.set_expert_parallel(mesh, {std::move(ep), std::move(edp), std::move(etp)});
          },
          ReleaseGil());
  module.def("update_load_balancers", &update_balancers, ReleaseGil());
}

}  // namespace dtensor::python
