// Optimizers of the parameters of a module. Not fused: steps are bit-equal on all layouts.
#include "dtensor/c/dtensor.h"

#include "c/handles.h"
#include "c/status.h"
#include "dtensor/optim.h"

namespace dtensor::c {
namespace {

// One group with the names of the parameters in the module, which checkpoints store.
template <class Optimizer, class Options>
dtensor_optimizer* optimizer_of(const dtensor_module& module, const Options& options) {
  ParameterGroup<Options> group{.parameters = {}, .options = options};
  for (const auto& [name, parameter] : module.parameters) {
    group.parameters.push_back(*parameter);
    group.names.push_back(name);
  }
  return new dtensor_optimizer{module.mesh, std::make_unique<Optimizer>(std::vector{group})};
}

// Creates the optimizer after the ranks have agreed on the options.
template <class Optimizer, class Options>
void create_optimizer(const dtensor_module* module, const Options& options, std::initializer_list<double> values,
                      dtensor_optimizer** optimizer) {
  const auto& of = required(module, "module");
  std::unique_ptr<dtensor_optimizer> made;
  agree(of.mesh.communicator(), [&] {
    required(optimizer, "pointer for the optimizer");
    made.reset(optimizer_of<Optimizer>(of, options));
    return c10::str("options ", at::ArrayRef<double>(values));
  });
  *optimizer = made.release();
}

}  // namespace
}  // namespace dtensor::c

using namespace dtensor::c;

dtensor_status dtensor_optimizer_adamw(const dtensor_module* module, double lr, double beta1, double beta2, double eps,
                                       double weight_decay, dtensor_optimizer** optimizer) {
  return guarded(__func__, [&] {
    const dtensor::AdamWOptions options{
        .lr = lr, .beta1 = beta1, .beta2 = beta2, .eps = eps, .weight_decay = weight_decay, .fused = false};
    create_optimizer<dtensor::AdamW>(module, options, {lr, beta1, beta2, eps, weight_decay}, optimizer);
  });
}

dtensor_status dtensor_optimizer_sgd(const dtensor_module* module, double lr, double momentum, double weight_decay,
                                     dtensor_optimizer** optimizer) {
  return guarded(__func__, [&] {
    const dtensor::SGDOptions options{.lr = lr, .momentum = momentum, .weight_decay = weight_decay, .fused = false};
    create_optimizer<dtensor::SGD>(module, options, {lr, momentum, weight_decay}, optimizer);
  });
}

void dtensor_optimizer_free(dtensor_optimizer* optimizer) { delete optimizer; }

dtensor_status dtensor_optimizer_step(dtensor_optimizer* optimizer) {
  return guarded(__func__, [&] { required(optimizer, "optimizer").optimizer->step(); });
}

dtensor_status dtensor_optimizer_zero_grad(dtensor_optimizer* optimizer) {
  return guarded(__func__, [&] { required(optimizer, "optimizer").optimizer->zero_grad(); });
}

dtensor_status dtensor_optimizer_set_lr(dtensor_optimizer* optimizer, double lr) {
  return guarded(__func__, [&] {
    TORCH_CHECK_VALUE(lr >= 0, "expected a learning rate >= 0, got ", lr);
    required(optimizer, "optimizer").optimizer->set_lr(lr);
  });
}
