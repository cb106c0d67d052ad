// Checkpoints of a module, its optimizer and a step count.
#include "dtensor/checkpoint.h"

#include "c/handles.h"
#include "c/status.h"

namespace dtensor::c {
namespace {

// A checkpoint of the parts that the caller has; the ranks have agreed on them and on the path.
Checkpoint checkpoint_of(const char* path, const dtensor_module* module, dtensor_optimizer* optimizer,
                         std::int64_t* step) {
  const auto& saved = object(module);
  agree(saved.mesh.communicator(), [&] {
    required(step, "pointer for the step");
    if (optimizer != nullptr) object(optimizer);
    const std::string text = &required(path, "path");
    TORCH_CHECK_VALUE(!text.empty(), "expected the path of a checkpoint, got an empty text");
    return "path '" + text + "' and " + (optimizer == nullptr ? "no optimizer" : "an optimizer");
  });
  Checkpoint checkpoint;
  checkpoint.add("model", *saved.module);
  if (optimizer != nullptr) checkpoint.add("optimizer", *object(optimizer).optimizer);
  checkpoint.add("step", *step);
  return checkpoint;
}

}  // namespace
}  // namespace dtensor::c

using namespace dtensor::c;

dtensor_status dtensor_checkpoint_save(const char* directory, const dtensor_module* module,
                                       dtensor_optimizer* optimizer, int64_t step) {
  return guarded_on_all(__func__, {module, optimizer}, [&] {
    const auto checkpoint = checkpoint_of(directory, module, optimizer, &step);
    checkpoint.save(directory, object(module).mesh.communicator());
  });
}

dtensor_status dtensor_checkpoint_load(const char* path, const dtensor_module* module, dtensor_optimizer* optimizer,
                                       int64_t* step) {
  return guarded_on_all(__func__, {module, optimizer}, [&] {
    auto checkpoint = checkpoint_of(path, module, optimizer, step);
    checkpoint.load(path, object(module).mesh.communicator(), {.allow_unexpected = optimizer == nullptr});
  });
}
