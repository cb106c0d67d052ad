// Random programs of operators that have a bit-identical form. A program transforms a matrix step by step; some steps
// have operands of their own.
#pragma once

#include "bit_identical/bits.h"
#include "dtensor/attention.h"

namespace dtensor::test {

struct Program {
  Tensors inputs;     // the matrix, the operands of the steps, and the gradient of the result
  std::string text;   // names of the steps
  Function function;  // of all inputs but the last
};

class ProgramBuilder {
 public:
  ProgramBuilder(Draw& draw, at::ScalarType type) : draw_(draw), type_(type) {
    rows_ = draw.integer(1, 150), columns_ = draw.integer(1, 90);
    add_operand({rows_, columns_});
  }

  Program build(std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i) add_step();
    add_operand({rows_, columns_});
    const auto run = [steps = steps_](const Tensors& inputs) {
      at::Tensor x = inputs[0];
      for (const auto& step : steps) x = step(x, inputs);
      return x;
    };
    return {inputs_, text_, run};
  }

 private:
  using Step = std::function<at::Tensor(const at::Tensor&, const Tensors&)>;

  std::size_t add_operand(const Shape& sizes) {
    inputs_.push_back(draw_.normal(sizes, type_));
    return inputs_.size() - 1;
  }
  void add(const char* name, Step step) {
    text_ += std::string(text_.empty() ? "" : ", ") + name;
    steps_.push_back(std::move(step));
  }

  void add_step() {
    switch (draw_.integer(0, 11)) {
      case 0:
      case 1:
      case 2:
        return add_product();
      case 3:
        return add_norm();
      case 4:
        return add_reduction();
      case 5:
        return add_view();
      case 6:
        return draw_.coin() ? add_lookup() : add_attention();
      case 7:
        return add_image_operator();
      case 8:
        return add_index_sum();
      default:
        return add_elementwise();
    }
  }

  // A number of columns of the result; the product's other sizes are the matrix's.
  void add_product() {
    const auto width = draw_.integer(1, 90);
    const bool tokens = rows_ % 2 == 0;
    const auto kind = draw_.integer(0, 3);
    const auto w = add_operand(kind == 0 ? Shape{width, columns_} : Shape{columns_, width}), b = add_operand({width});
    if (kind == 0 && tokens && draw_.coin()) {
      add("linear of tokens", [=, n = rows_, c = columns_](const at::Tensor& x, const Tensors& in) {
        return at::linear(x.reshape({2, n / 2, c}), in[w], in[b]).reshape({n, width});
      });
    } else if (kind == 0) {
      add("linear", [=](const at::Tensor& x, const Tensors& in) { return at::linear(x, in[w], in[b]); });
    } else if (kind == 1) {
      add("addmm", [=](const at::Tensor& x, const Tensors& in) { return at::addmm(in[b], x, in[w]); });
    } else if (kind == 2 && tokens) {
      add("bmm", [=, n = rows_, c = columns_](const at::Tensor& x, const Tensors& in) {
        return at::bmm(x.reshape({2, n / 2, c}), in[w].expand({2, c, width})).reshape({n, width});
      });
    } else {
      add("matmul", [=](const at::Tensor& x, const Tensors& in) { return at::matmul(x, in[w]); });
    }
    columns_ = width;
  }

  void add_norm() {
    const auto w = add_operand({columns_}), b = add_operand({columns_});
    const std::vector<std::int64_t> shape{columns_};
    switch (draw_.integer(0, 3)) {
      case 0:
        return add("layer_norm",
                   [=](const at::Tensor& x, const Tensors& in) { return at::layer_norm(x, shape, in[w], in[b]); });
      case 1:
        return add("rms_norm",
                   [=](const at::Tensor& x, const Tensors& in) { return at::rms_norm(x, shape, in[w], 1e-5); });
      case 2:
        return add("softmax",
                   [](const at::Tensor& x, const Tensors&) { return at::softmax(x, 0) + at::softmax(x, 1); });
      default: {
        const auto dim = draw_.integer(0, 1);
        return add("log_softmax", [=](const at::Tensor& x, const Tensors&) { return at::log_softmax(x, dim); });
      }
    }
  }

  void add_reduction() {
    const auto dim = draw_.integer(0, 1);
    const bool mean = draw_.coin(), all = draw_.coin();
    if (draw_.integer(0, 3) == 0) {
      const auto v = add_operand({columns_});
      return add("mv and dot", [=](const at::Tensor& x, const Tensors& in) {
        return x * at::mv(x, in[v]).unsqueeze(1) + at::dot(in[v], in[v]);
      });
    }
    add(mean ? "mean" : "sum", [=](const at::Tensor& x, const Tensors&) {
      if (all) return x + (mean ? x.mean() : x.sum());
      return x + (mean ? x.mean(dim, true) : x.sum(dim, true));
    });
  }

  void add_view() {
    switch (draw_.integer(0, 2)) {
      case 0:
        std::swap(rows_, columns_);
        return add("transpose", [](const at::Tensor& x, const Tensors&) { return x.t(); });
      case 1: {
        const auto first = draw_.integer(0, columns_ - 1), length = draw_.integer(1, columns_ - first);
        columns_ = length;
        return add("narrow", [=](const at::Tensor& x, const Tensors&) { return x.narrow(1, first, length); });
      }
      default:
        if (columns_ > 60) return;
        columns_ *= 2;
        return add("cat", [](const at::Tensor& x, const Tensors&) { return at::cat({x, x * 0.5}, 1); });
    }
  }

  // The rows as sequences of one or two batch entries, with heads of the columns; fewer heads of keys in groups.
  void add_attention() {
    const std::int64_t batch = rows_ % 2 == 0 ? draw_.integer(1, 2) : 1;
    const std::int64_t heads = columns_ % 4 == 0 ? 4 : columns_ % 2 == 0 ? 2 : 1;
    const std::int64_t groups = draw_.coin() ? 1 : heads, length = rows_ / batch;
    const auto options = attention_options(length, heads);
    add("attention", [=, n = rows_, c = columns_](const at::Tensor& x, const Tensors& in) {
      const auto q = x.reshape({batch, length, heads, c / heads}).transpose(1, 2), kv = q.narrow(1, 0, groups);
      return attend(q, kv * 0.5, kv, options, in).transpose(1, 2).reshape({n, c});
    });
  }

  // How attention is called. Operands are given by their index.
  struct Attention {
    AttentionOptions options;
    std::size_t mask = 0, sinks = 0;
    bool by_aten = false;
  };

  Attention attention_options(std::int64_t length, std::int64_t heads) {
    Attention a;
    a.options.causal = draw_.coin();
    switch (draw_.integer(0, 6)) {
      case 0:
        a.mask = add_operand({length, length});
        break;
      case 1:
        a.options.window = draw_.integer(1, length);
        break;
      case 2:
        a.options.documents = {0, draw_.integer(0, length)};
        break;
      case 3:
        a.sinks = add_operand({heads});
        break;
      default:
        a.by_aten = true;
    }
    return a;
  }

  static at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Attention& a,
                           const Tensors& in) {
    if (a.by_aten) {
      return at::scaled_dot_product_attention(q, k, v, {}, 0, a.options.causal, {}, q.size(1) != k.size(1));
    }
    AttentionOptions options = a.options;
    if (a.mask != 0) options.mask = in[a.mask].detach();
    if (a.sinks != 0) options.sinks = in[a.sinks];
    return attention(q, k, v, options);
  }

  // Rows of a table, or the losses of rows.
  void add_lookup() {
    if (draw_.coin()) {
      const auto vocabulary = draw_.integer(1, 40);
      const auto table = add_operand({vocabulary, columns_});
      inputs_.push_back(draw_.integers({rows_}, vocabulary));
      const auto index = inputs_.size() - 1;
      return add("embedding",
                 [=](const at::Tensor& x, const Tensors& in) { return x + at::embedding(in[table], in[index]); });
    }
    if (type_ != at::kFloat) return;  // losses are computed in float32
    inputs_.push_back(draw_.integers({rows_}, columns_));
    const auto target = inputs_.size() - 1;
    add("cross_entropy",
        [=](const at::Tensor& x, const Tensors& in) { return x * at::cross_entropy_loss(x, in[target]); });
  }

  // The matrix as images of one row for each row or column, or as one image.
  void add_image_operator() {
    const bool by_row = draw_.coin();
    const auto image = [=, n = rows_, c = columns_](const at::Tensor& x) {
      return by_row ? x.reshape({n, 1, 1, c}) : x.reshape({1, 1, n, c});
    };
    const auto back = [n = rows_, c = columns_](const at::Tensor& x) { return x.reshape({n, c}); };
    if (draw_.coin()) {
      const std::int64_t kernel = by_row ? 1 : 3, width = 2 * draw_.integer(0, 2) + 1;
      const auto w = add_operand({1, 1, kernel, width}), b = add_operand({1});
      return add("convolution", [=](const at::Tensor& x, const Tensors& in) {
        return back(at::conv2d(image(x), in[w], in[b], 1, at::IntArrayRef{kernel / 2, width / 2}));
      });
    }
    const std::int64_t groups = columns_ % 2 == 0 ? 2 : 1;
    const auto w = add_operand({columns_}), b = add_operand({columns_});
    add("group_norm", [=](const at::Tensor& x, const Tensors& in) { return at::group_norm(x, groups, in[w], in[b]); });
  }

  void add_index_sum() {
    inputs_.push_back(draw_.integers({rows_}, rows_));
    const auto index = inputs_.size() - 1;
    if (draw_.coin()) {
      return add("index_add",
                 [=](const at::Tensor& x, const Tensors& in) { return at::index_add(x, 0, in[index], x * 0.5); });
    }
    add("gather", [=, n = rows_, c = columns_](const at::Tensor& x, const Tensors& in) {
      return x.gather(0, in[index].unsqueeze(1).expand({n, c}));
    });
  }

  void add_elementwise() {
    static const std::vector<std::pair<const char*, at::Tensor (*)(const at::Tensor&)>> functions{
        {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
        {"gelu tanh", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
        {"silu", [](const at::Tensor& x) { return at::silu(x); }},
        {"sigmoid", [](const at::Tensor& x) { return at::sigmoid(x); }},
        {"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
        {"relu", [](const at::Tensor& x) { return at::relu(x); }},
        {"softplus", [](const at::Tensor& x) { return at::softplus(x); }},
        {"sqrt", [](const at::Tensor& x) { return at::sqrt(x.abs() + 1); }},
        {"rsqrt", [](const at::Tensor& x) { return at::rsqrt(x.abs() + 1); }},
        {"exp", [](const at::Tensor& x) { return at::exp(at::clamp(x, -4, 4)); }},
        {"pow", [](const at::Tensor& x) { return at::pow(x.abs() + 1, 1.5); }},
        {"div", [](const at::Tensor& x) { return x / (x.abs() + 2); }},
        {"lerp", [](const at::Tensor& x) { return at::lerp(x, x * x, 0.3); }},
        {"add", [](const at::Tensor& x) { return at::add(x, x * 0.7, 0.37); }},
        {"mse_loss", [](const at::Tensor& x) { return x * at::mse_loss(x, x * 0.3); }},
        {"where", [](const at::Tensor& x) { return at::where(x > 0, x, x * 0.1); }},
    };
    const auto& [name, f] = functions[static_cast<std::size_t>(draw_.integer(0, std::ssize(functions) - 1))];
    add(name, [f = f](const at::Tensor& x, const Tensors&) { return f(x); });
  }

  Draw& draw_;
  at::ScalarType type_;
  std::int64_t rows_, columns_;
  Tensors inputs_;
  std::string text_;
  std::vector<Step> steps_;
};

}  // namespace dtensor::test
