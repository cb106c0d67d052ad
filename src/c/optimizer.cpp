// Optimizers of the parameters of a module. Not fused: steps are bit-equal on all layouts.
#include "dtensor/c/dtensor.h"

#include <cmath>
#include <map>

#include "c/handles.h"
#include "c/status.h"
#include "dtensor/optim.h"

namespace dtensor::c {
namespace {

std::string text_of(std::initializer_list<double> numbers) {
  std::string text;
  for (const double number : numbers) text += ' ' + digits(number);
  return text;
}

// One group with the names of the parameters in the module, which checkpoints store.
template <class Algorithm, class Options>
Optimizer optimizer_of(const Module& module, const Options& options) {
  ParameterGroup<Options> group{.parameters = {}, .options = options};
  for (const auto& [name, parameter] : module.parameters) {
    group.parameters.push_back(*parameter);
    group.names.push_back(name);
  }
  return {module.mesh, std::make_unique<Algorithm>(std::vector{group})};
}

// Creates the optimizer after the ranks have agreed on the options.
template <class Algorithm, class Options>
void create_optimizer(const dtensor_module* module, const Options& options, std::initializer_list<double> values,
                      dtensor_optimizer** optimizer) {
  const auto& of = object(module);
  Optimizer made;
  agree(of.mesh.communicator(), [&] {
    required(optimizer, "pointer for the optimizer");
    made = optimizer_of<Algorithm>(of, options);
    return "options" + text_of(values);
  });
  *optimizer = new_handle<dtensor_optimizer>(std::move(made));
}

// The options that dtensor_optimizer_set_option sets, by name.
template <class Options>
struct NamedOptions {
  std::map<std::string, double Options::*> numbers;
  std::map<std::string, bool Options::*> switches;
};
NamedOptions<dtensor::AdamWOptions> named_options(const dtensor::AdamW& /*of*/) {
  using O = dtensor::AdamWOptions;
  return {{{"beta1", &O::beta1}, {"beta2", &O::beta2}, {"eps", &O::eps}, {"weight_decay", &O::weight_decay}},
          {{"amsgrad", &O::amsgrad}}};
}
NamedOptions<dtensor::SGDOptions> named_options(const dtensor::SGD& /*of*/) {
  using O = dtensor::SGDOptions;
  return {{{"momentum", &O::momentum}, {"dampening", &O::dampening}, {"weight_decay", &O::weight_decay}},
          {{"nesterov", &O::nesterov}}};
}

// A function that sets the option. Throws if the optimizer has no such option or the value is invalid. Empty if it is
// another optimizer.
template <class Algorithm>
std::function<void()> option_setter(dtensor::Optimizer& optimizer, const std::string& name, double value) {
  auto* made = dynamic_cast<Algorithm*>(&optimizer);
  if (made == nullptr) return {};
  auto options = made->options();
  const auto known = named_options(*made);
  if (const auto number = known.numbers.find(name); number != known.numbers.end()) {
    TORCH_CHECK_VALUE(std::isfinite(value), "expected a finite ", name, ", got ", value);
    options.*number->second = value;
  } else {
    const auto on = known.switches.find(name);
    TORCH_CHECK_VALUE(on != known.switches.end(), "expected the name of an option of this optimizer, got '", name, "'");
    TORCH_CHECK_VALUE(value == 0 || value == 1, "expected 0 or 1 for ", name, ", got ", value);
    options.*on->second = value == 1;
  }
  const Algorithm validator({}, options);  // checks them
  return [made, options] { made->options() = options; };
}

}  // namespace
}  // namespace dtensor::c

using namespace dtensor::c;

dtensor_status dtensor_optimizer_adamw(const dtensor_module* module, double lr, double beta1, double beta2, double eps,
                                       double weight_decay, dtensor_optimizer** optimizer) {
  return guarded_on_all(__func__, {module}, [&] {
    const dtensor::AdamWOptions options{
        .lr = lr, .beta1 = beta1, .beta2 = beta2, .eps = eps, .weight_decay = weight_decay, .fused = false};
    create_optimizer<dtensor::AdamW>(module, options, {lr, beta1, beta2, eps, weight_decay}, optimizer);
  });
}

dtensor_status dtensor_optimizer_sgd(const dtensor_module* module, double lr, double momentum, double weight_decay,
                                     dtensor_optimizer** optimizer) {
  return guarded_on_all(__func__, {module}, [&] {
    const dtensor::SGDOptions options{.lr = lr, .momentum = momentum, .weight_decay = weight_decay, .fused = false};
    create_optimizer<dtensor::SGD>(module, options, {lr, momentum, weight_decay}, optimizer);
  });
}

void dtensor_optimizer_free(dtensor_optimizer* optimizer) {
  guarded(__func__, [&] { free_object(optimizer, Kind::optimizer); });
}

dtensor_status dtensor_optimizer_step(dtensor_optimizer* optimizer) {
  return guarded_on_all(__func__, {optimizer}, [&] { object(optimizer).optimizer->step(); });
}

dtensor_status dtensor_optimizer_zero_grad(dtensor_optimizer* optimizer) {
  return guarded_on_all(__func__, {optimizer}, [&] { object(optimizer).optimizer->zero_grad(); });
}

dtensor_status dtensor_optimizer_set_lr(dtensor_optimizer* optimizer, double lr) {
  return guarded_on_all(__func__, {optimizer}, [&] {
    auto& changed = object(optimizer);
    agree(changed.mesh.communicator(), [&] {
      TORCH_CHECK_VALUE(lr >= 0 && std::isfinite(lr), "expected a finite learning rate >= 0, got ", lr);
      return "learning rate " + digits(lr);
    });
    changed.optimizer->set_lr(lr);
  });
}

dtensor_status dtensor_optimizer_set_option(dtensor_optimizer* optimizer, const char* name, double value) {
  return guarded_on_all(__func__, {optimizer}, [&] {
    auto& changed = object(optimizer);
    std::function<void()> set;
    agree(changed.mesh.communicator(), [&] {
      const std::string option = &required(name, "name of an option");
      set = option_setter<dtensor::AdamW>(*changed.optimizer, option, value);
      if (!set) set = option_setter<dtensor::SGD>(*changed.optimizer, option, value);
      return option + ' ' + digits(value);
    });
    set();
  });
}
