// Experts that are Python modules. Python owns their parameters; C++ holds references to move and gather them.
#include "dtensor/moe/experts.h"

#include "bind.h"
#include "dtensor/moe.h"

namespace dtensor::python {
namespace {

// The parameters of one expert, by their Python names.
class Expert final : public nn::Module {
 public:
  explicit Expert(const Named& parameters) {
    for (const auto& [name, tensor] : parameters) tensors_.push_back(tensor);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (tensors_[i].requires_grad())
        register_parameter(parameters[i].first, tensors_[i]);
      else
        register_buffer(parameters[i].first, tensors_[i]);
    }
  }
  std::vector<at::Tensor>& tensors() { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
};

class RoutedLayer {
 public:
  void add(const Named& parameters, RoutedExperts::Forward forward) {
    auto expert = std::make_unique<Expert>(parameters);
    experts_.push_back(expert.get());
    module_.add(std::move(expert), std::move(forward));
  }
  std::vector<std::vector<at::Tensor>> parameters() const {
    std::vector<std::vector<at::Tensor>> result;
    for (auto* expert : experts_) result.push_back(expert->tensors());
    return result;
  }
  void assign(std::vector<std::vector<at::Tensor>> tensors) {
    TORCH_CHECK(tensors.size() == experts_.size(), "RoutedExperts: expected the parameters of ", experts_.size(),
                " experts, got ", tensors.size());
    for (std::size_t e = 0; e < experts_.size(); ++e) {
      auto& slots = experts_[e]->tensors();
      TORCH_CHECK(slots.size() == tensors[e].size(), "RoutedExperts: expert ", e, " expected ", slots.size(),
                  " parameters, got ", tensors[e].size());
      for (std::size_t i = 0; i < slots.size(); ++i)
        slots[i] = std::move(tensors[e][i]);  // module_ refers to the slots
    }
  }
  at::Tensor run(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights) {
    return module_.forward(x, ids, weights);
  }
  at::Tensor load() const { return module_.load(); }
  void set_expert_parallel(const DeviceMesh& mesh, const ExpertParallelOptions& options) {
    apply_expert_parallel(module_, mesh, options);
  }

 private:
  RoutedExperts module_;
  std::vector<Expert*> experts_;
};

}  // namespace

void bind_routed_experts(py::module_& module) {
  py::class_<RoutedLayer>(module, "RoutedLayer")
      .def(py::init<>())
      .def("add", &RoutedLayer::add)
      .def("parameters", &RoutedLayer::parameters)
      .def("assign", &RoutedLayer::assign)
      .def("run", &RoutedLayer::run, ReleaseGil())
      .def("load", &RoutedLayer::load)
      .def(
          "set_expert_parallel",
          [](RoutedLayer& layer, const DeviceMesh& mesh, std::string ep, std::string edp, std::string etp) {
            layer.set_expert_parallel(mesh, {std::move(ep), std::move(edp), std::move(etp)});
          },
          ReleaseGil());
}

}  // namespace dtensor::python
