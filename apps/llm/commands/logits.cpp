// Logits of a prompt and the file for them.
#include "llm/commands/logits.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "dtensor/tensor.h"
#include "train/output/output.h"

namespace llm {

at::Tensor logits_of(const Model& model, const std::vector<std::int64_t>& tokens) {
  const at::NoGradGuard no_grad;
  const auto same_bits = model.bit_identical_scope();
  const at::Tensor ids = model.place(at::tensor(tokens, at::kLong).unsqueeze(0));
  const at::Tensor logits = (*model.decoder)(ids).squeeze(0);
  return (dtensor::is_dtensor(logits) ? dtensor::DTensor(logits).full_tensor() : logits).cpu();
}

void write_safetensors(const std::string& path, const std::string& name, const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  const char* dtype = values.scalar_type() == at::kDouble     ? "F64"
                      : values.scalar_type() == at::kBFloat16 ? "BF16"
                      : values.scalar_type() == at::kHalf     ? "F16"
                                                              : "F32";
  nlohmann::json header;
  header[name] = {{"dtype", dtype}, {"shape", values.sizes().vec()}, {"data_offsets", {0, values.nbytes()}}};
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto length = static_cast<std::uint64_t>(text.size());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text;
  file.write(static_cast<const char*>(values.const_data_ptr()), static_cast<std::streamsize>(values.nbytes()));
  train::close_written(file, path);
}

void check_tokens(const Family& family, const std::vector<std::int64_t>& tokens, std::int64_t more) {
  for (const std::int64_t id : tokens) {
    if (id < 0 || id >= family.config.vocabulary) {
      throw UsageError(fmt::format("--tokens: expected ids in [0, {}), got {}", family.config.vocabulary, id));
    }
  }
  const auto count = static_cast<std::int64_t>(tokens.size()) + more;
  const std::int64_t learned = family.config.learned_positions;
  if (learned > 0 && count > learned) {
    throw UsageError(fmt::format("expected at most {} tokens (the model's positions), got {}", learned, count));
  }
}

}  // namespace llm
