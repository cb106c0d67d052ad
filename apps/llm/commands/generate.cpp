// Generation with a KV cache.
#include "llm/commands/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <random>

#include "dtensor/tensor.h"

namespace llm {

std::int64_t pick(const at::Tensor& logits, const SampleOptions& o, std::int64_t position) {
  if (o.temperature == 0) return logits.argmax(-1).item<std::int64_t>();
  const auto [sorted, ids] = at::softmax(logits.to(at::kDouble) / o.temperature, -1).sort(-1, /*descending=*/true);
  const at::Tensor sums = sorted.cumsum(0);
  const double* sum = sums.const_data_ptr<double>();
  const auto count =
      std::lower_bound(sum, sum + sums.size(0), o.top_p) - sum;  // The number of tokens with top_p together.
  const auto last = std::min<std::int64_t>(count, sums.size(0) - 1);
  std::seed_seq seed{static_cast<std::uint32_t>(o.seed), static_cast<std::uint32_t>(o.seed >> 32),
                     static_cast<std::uint32_t>(position)};
  std::mt19937_64 engine(seed);
  const double drawn = static_cast<double>(engine() >> 11) * 0x1p-53 * sum[last];
  const auto place = std::min<std::int64_t>(std::upper_bound(sum, sum + last, drawn) - sum, last);
  return ids.const_data_ptr<std::int64_t>()[place];
}

namespace {

at::Tensor last_logits(const Model& model, const at::Tensor& ids, dtensor::nn::KVCache& cache) {
  const at::Tensor hidden = model.decoder->hidden(model.place(ids), &cache);
  const at::Tensor logits = model.decoder->head(hidden.narrow(1, hidden.size(1) - 1, 1)).flatten();
  return (dtensor::is_dtensor(logits) ? dtensor::DTensor(logits).full_tensor() : logits).cpu();
}

}  // namespace

std::vector<std::int64_t> generate(const Model& model, const dtensor::Communicator& world,
                                   const std::vector<std::int64_t>& prompt, const SampleOptions& options,
                                   const std::vector<std::int64_t>& ends,
                                   const std::function<void(std::int64_t)>& on_token) {
  const at::NoGradGuard no_grad;
  const auto same_bits = model.bit_identical_scope();
  const auto length = static_cast<std::int64_t>(prompt.size());
  dtensor::nn::KVCache cache(model.decoder->config().layers, length + options.max_new_tokens, options.split_cache);
  at::Tensor ids = at::tensor(prompt, at::kLong).unsqueeze(0);
  std::vector<std::int64_t> made;
  while (static_cast<std::int64_t>(made.size()) < options.max_new_tokens) {
    const at::Tensor logits = last_logits(model, ids, cache);
    // Results of replicas may differ in the last bits, so one of them chooses the token and broadcasts it.
    at::Tensor token = at::zeros({1, 1}, at::kLong);
    if (world.rank() == 0) token.fill_(pick(logits, options, cache.length()));
    if (world.size() > 1) world.broadcast(token, 0).wait();
    made.push_back(token.item<std::int64_t>());
    if (on_token) on_token(made.back());
    if (!options.ignore_end && std::find(ends.begin(), ends.end(), made.back()) != ends.end()) break;
    ids = token;
  }
  return made;
}

}  // namespace llm
