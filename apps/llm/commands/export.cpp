// Writes a folder that transformers loads.
#include "llm/commands/export.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "train/output/output.h"

namespace llm {
namespace {

namespace fs = std::filesystem;

bool holds_weights(const fs::path& file) {
  const std::string name = file.filename().string();
  static const char* const endings[] = {
      ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf"};
  const auto ends = [&](const char* ending) { return name.ends_with(ending); };
  return name == "checkpoint.json" || std::any_of(std::begin(endings), std::end(endings), ends);
}

void set_dtype(const fs::path& config, at::ScalarType dtype) {
  std::ifstream in(config);
  auto j = nlohmann::ordered_json::parse(in);
  const char* name = dtype == at::kDouble     ? "float64"
                     : dtype == at::kBFloat16 ? "bfloat16"
                     : dtype == at::kHalf     ? "float16"
                                              : "float32";
  j[j.contains("torch_dtype") && !j.contains("dtype") ? "torch_dtype" : "dtype"] = name;
  train::write_file(config.string(), j.dump(2) + "\n");
}

void copy_other_files(const std::string& source, const std::string& out) {
  for (const auto& entry : fs::directory_iterator(source)) {
    if (!entry.is_regular_file() || holds_weights(entry.path())) continue;
    fs::copy_file(entry.path(), fs::path(out) / entry.path().filename(), fs::copy_options::overwrite_existing);
  }
}

// Merges adapters into the weights that they adapt.
dtensor::StateTensors merged_state(const Model& model) {
  std::unordered_map<std::string, at::Tensor> merged;
  for (const auto& [name, module] : model.decoder->named_modules()) {
    auto* projection = dynamic_cast<dtensor::nn::Linear*>(module);
    if (projection != nullptr && projection->lora_a.defined()) merged[name + ".weight"] = projection->merged();
  }
  dtensor::StateTensors state = stored_state(model);
  for (auto& [name, tensor] : state) {
    const auto found = merged.find(name);
    if (found != merged.end()) tensor = found->second;
  }
  return state;
}

// Converts tensors to their dtypes in the source, or to the requested dtype. Omits second names of a tensor if the
// source does.
dtensor::StateTensors converted(const dtensor::StateTensors& tensors, const std::string& source,
                                std::optional<at::ScalarType> dtype) {
  std::map<std::string, at::ScalarType> stored;
  if (has_weights(source)) {  // else --from-scratch
    for (const auto& entry : dtensor::read_checkpoint_index(source).entries) stored[entry.name] = entry.dtype;
  }
  std::unordered_map<c10::TensorImpl*, at::Tensor> made;
  dtensor::StateTensors result;
  for (const auto& [name, tensor] : tensors) {
    const auto found = stored.find(name);
    const auto [place, first] = made.try_emplace(tensor.unsafeGetTensorImpl());
    if (!first && found == stored.end()) continue;
    const auto as_stored = found == stored.end() ? tensor.scalar_type() : found->second;
    if (first) place->second = tensor.detach().to(dtype.value_or(as_stored));
    result.emplace_back(name, place->second);
  }
  return result;
}

}  // namespace

bool has_weights(const std::string& folder) {
  const fs::directory_iterator files(folder), none;
  return std::any_of(files, none, [](const auto& entry) { return holds_weights(entry.path()); });
}

void check_export(const std::string& source, const std::string& out) {
  std::error_code ignored;
  if (fs::equivalent(source, out, ignored))
    throw UsageError(fmt::format("--out: expected another folder than that of the model, got {}", out));
  train::check_can_save("--out", out, /*keep_foreign=*/true);
}

at::ScalarType widest_stored(const std::string& folder) {
  auto widest = at::ScalarType::Undefined;
  for (const auto& entry : dtensor::read_checkpoint_index(folder).entries) {
    if (entry.dtype == at::ScalarType::Undefined || !at::isFloatingType(entry.dtype)) continue;
    widest = widest == at::ScalarType::Undefined ? entry.dtype : at::promoteTypes(widest, entry.dtype);
  }
  return widest == at::ScalarType::Undefined ? at::kFloat : widest;
}

void export_folder(const Model& model, const Family& family, const std::string& source, const std::string& out,
                   const dtensor::Communicator& world, std::optional<at::ScalarType> dtype) {
  const at::NoGradGuard no_grad;
  const auto tensors = map_state_dict_keys(merged_state(model), family.names);
  save_state(out, world, converted(tensors, source, dtype), {}, {.keep_foreign = true});
  if (world.rank() == 0) {
    copy_other_files(source, out);
    if (dtype) set_dtype(fs::path(out) / "config.json", *dtype);
  }
  world.barrier();
}

}  // namespace llm
