// Attention over a split sequence: what PyTorch's function cannot say, and which strategy it takes.
#include "dtensor/attention.h"

#include "bind.h"

namespace dtensor::python {

void bind_attention(py::module_& module) {
  bind_scope<AttentionStrategyScope>(module, "attention_strategy",
                                     "While open, attention on this thread takes \"ring\", \"gather\" or \"ulysses\" "
                                     "on every mesh axis that splits the\n"
                                     "sequence, in place of the cheapest (\"auto\"). Backward does what forward did.")
      .def(py::init([](const std::string& name) {
             const AttentionStrategy strategy = parse_attention_strategy(name);
             return ScopeContextManager<AttentionStrategyScope>(
                 [=] { return std::make_unique<AttentionStrategyScope>(strategy); });
           }),
           py::arg("name"));
  module.def(
      "attention",
      [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
         bool causal, double dropout, std::optional<double> scale, std::int64_t window,
         std::vector<std::int64_t> documents, const std::optional<at::Tensor>& sinks,
         const std::optional<at::Tensor>& row_cu_seqlens) {
        return attention(q, k, v,
                         {mask.value_or(at::Tensor()), causal, dropout, scale, window, std::move(documents),
                          sinks.value_or(at::Tensor()), row_cu_seqlens.value_or(at::Tensor())});
      },
      py::arg("q"), py::arg("k"), py::arg("v"), py::kw_only(), py::arg("mask") = py::none(), py::arg("causal") = false,
      py::arg("dropout") = 0.0, py::arg("scale") = py::none(), py::arg("window") = 0,
      py::arg("documents") = std::vector<std::int64_t>(), py::arg("sinks") = py::none(),
      py::arg("row_cu_seqlens") = py::none(), ReleaseGil(),
      "softmax(q k^T scale + mask) v of q [B, H, L, E], k [B, G, S, E], v [B, G, S, F]: [B, H, L, F] as q. window: "
      "query i\n"
      "sees keys with |i - j| < window; documents: each one's first position; sinks: [H]; row_cu_seqlens: int64 [B, "
      "D],\n"
      "documents of each row of the batch, filled up with S.");
}

}  // namespace dtensor::python
