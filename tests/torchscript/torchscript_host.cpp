// A program that owns MPI and trains a TorchScript module through the C interface.  mpirun -n N torchscript_host FOLDER
// FOLDER: for the module's file. Prints a line on failure and returns 1.
#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include "dtensor/c/dtensor.h"

namespace {

constexpr int kRows = 7, kInputs = 3, kSteps = 4;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "torchscript_host: %s; last error: %s\n", what.c_str(), dtensor_last_error());
  std::_Exit(1);  // without MPI_Finalize: mpirun ends the other ranks
}
void ok(dtensor_status status) { expect(status == DTENSOR_OK, "expected DTENSOR_OK"); }

// A network with a child module, control flow, a buffer, and a parameter that is not trained.
void save_module(const std::string& file) {
  torch::jit::Module child("child"), module("module");
  child.register_parameter("weight", at::linspace(-1, 1, 15, at::kDouble).view({5, 3}).requires_grad_(), false);
  child.define("def forward(self, x):\n  return torch.tanh(torch.linear(x, self.weight))\n");
  module.register_module("first", child);
  module.register_parameter("weight", at::linspace(0, 1, 10, at::kDouble).view({2, 5}).requires_grad_(), false);
  module.register_parameter("frozen", at::full({2}, 0.5, at::kDouble), false);
  module.register_buffer("scale", at::full({1}, 2.0, at::kDouble));
  module.define(
      "def forward(self, x):\n"
      "  y = torch.linear(self.first.forward(x), self.weight, self.frozen)\n"
      "  if y.size(1) == 2:\n"
      "    y = y * self.scale\n"
      "  return y\n");
  module.save(file);
}

struct Run {
  std::vector<double> losses, weight;
};

dtensor_tensor* tensor_of(dtensor_mesh* mesh, std::vector<double>& values, std::int64_t columns) {
  const std::int64_t sizes[] = {static_cast<std::int64_t>(values.size()) / columns, columns};
  const dtensor_host_array array{values.data(), DTENSOR_FLOAT64, 2, sizes, nullptr};
  dtensor_tensor* tensor = nullptr;
  ok(dtensor_tensor_from_host(mesh, &array, "[S(0)]", &tensor));
  return tensor;
}

double train_step(dtensor_module* module, dtensor_optimizer* optimizer, dtensor_tensor* x, dtensor_tensor* y) {
  dtensor_tensor *prediction = nullptr, *loss = nullptr;
  double value = 0;
  ok(dtensor_optimizer_zero_grad(optimizer));
  ok(dtensor_module_forward(module, x, &prediction));
  ok(dtensor_mse_loss(prediction, y, &loss));
  ok(dtensor_tensor_backward(loss, nullptr));
  ok(dtensor_optimizer_step(optimizer));
  ok(dtensor_tensor_item(loss, &value));
  dtensor_tensor_free(prediction);
  dtensor_tensor_free(loss);
  return value;
}

Run train(dtensor_mesh* mesh, const std::string& file, int rank, int ranks, bool fully_shard) {
  std::vector<double> inputs, targets;
  const int chunk = (kRows + ranks - 1) / ranks;
  for (int row = rank * chunk; row < std::min((rank + 1) * chunk, kRows); ++row) {
    for (int j = 0; j < kInputs; ++j) inputs.push_back(std::sin(1.0 + 3 * row + j));
    for (int j = 0; j < 2; ++j) targets.push_back(std::cos(row - 2.0 * j));
  }
  dtensor_module* module = nullptr;
  dtensor_optimizer* optimizer = nullptr;
  ok(dtensor_module_load_torchscript(mesh, file.c_str(), &module));
  int count = 0;
  ok(dtensor_module_parameter_count(module, &count));
  expect(count == 3, "three parameters");
  if (fully_shard) ok(dtensor_module_fully_shard(module));
  ok(dtensor_optimizer_sgd(module, 0.1, 0.9, 0, &optimizer));
  dtensor_tensor *x = tensor_of(mesh, inputs, kInputs), *y = tensor_of(mesh, targets, 2), *weight = nullptr;
  Run run;
  for (int i = 0; i < kSteps; ++i) run.losses.push_back(train_step(module, optimizer, x, y));
  for (int i = 0; i < count; ++i) {
    const char* name = nullptr;
    ok(dtensor_module_parameter_name(module, i, &name));
    if (std::string(name) == "first.weight") ok(dtensor_module_parameter(module, i, &weight));
  }
  run.weight.resize(15);
  const std::int64_t sizes[] = {5, 3};
  const dtensor_host_array array{run.weight.data(), DTENSOR_FLOAT64, 2, sizes, nullptr};
  ok(dtensor_tensor_copy_full(weight, &array));
  for (auto* tensor : {x, y, weight}) dtensor_tensor_free(tensor);
  dtensor_optimizer_free(optimizer);
  dtensor_module_free(module);
  return run;
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b, const std::string& what) {
  expect(a.size() == b.size(), what);
  for (std::size_t i = 0; i < a.size(); ++i) expect(std::abs(a[i] - b[i]) < 1e-12, what);
}

// Two inputs and two results; dropout in training mode.
void save_second_module(const std::string& file) {
  torch::jit::Module module("second");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_parameter("weight", at::linspace(-1, 1, 9, at::kDouble).view({3, 3}).requires_grad_(), false);
  module.define(
      "def forward(self, x, y):\n"
      "  z = torch.dropout(torch.linear(x, self.weight) + y, 0.5, self.training)\n"
      "  return z, z * y\n");
  module.save(file);
}

double mean_square(dtensor_tensor* tensor, dtensor_tensor* zeros) {
  dtensor_tensor* loss = nullptr;
  double value = 0;
  ok(dtensor_mse_loss(tensor, zeros, &loss));
  ok(dtensor_tensor_item(loss, &value));
  dtensor_tensor_free(loss);
  return value;
}

// The mean squares of both results for one rank's share of rows.
std::vector<double> forward_list(dtensor_mesh* mesh, dtensor_module* module, int rank, int ranks) {
  std::vector<double> a, b, zero;
  const int rows = 12 / ranks;
  for (int i = 3 * rows * rank; i < 3 * rows * (rank + 1); ++i) a.push_back(std::sin(i)), b.push_back(std::cos(i));
  zero.resize(a.size());
  dtensor_tensor *x = tensor_of(mesh, a, 3), *y = tensor_of(mesh, b, 3), *zeros = tensor_of(mesh, zero, 3);
  const dtensor_tensor* inputs[] = {x, y};
  dtensor_tensor* results[2] = {};
  ok(dtensor_module_forward_list(module, 2, inputs, 2, results, 0));
  const std::vector<double> squares{mean_square(results[0], zeros), mean_square(results[1], zeros)};
  expect(dtensor_module_forward_list(module, 2, inputs, 1, &results[0], 0) == DTENSOR_INVALID_ARGUMENT, "two results");
  expect(std::string(dtensor_last_error()).find("that returns 1 tensors, got one that returns 2") != std::string::npos,
         "the error of a wrong number of results");
  for (auto* tensor : {x, y, zeros, results[0], results[1]}) dtensor_tensor_free(tensor);
  return squares;
}

// The modes of dropout, several inputs and results, and a saved module, which regular TorchScript loads too.
void check_second_module(dtensor_mesh* mesh, dtensor_mesh* alone, const std::string& file, int rank, int ranks) {
  const std::string saved = file + ".saved";
  dtensor_module *module = nullptr, *single = nullptr;
  if (rank == 0) save_second_module(file);
  MPI_Barrier(MPI_COMM_WORLD);
  ok(dtensor_module_load_torchscript(alone, file.c_str(), &single));
  ok(dtensor_module_load_torchscript(mesh, file.c_str(), &module));
  for (auto* either : {single, module}) ok(dtensor_module_train(either, 0));
  const auto expected = forward_list(alone, single, 0, 1);
  expect_close(forward_list(mesh, module, rank, ranks), expected, "two inputs and two results");
  ok(dtensor_module_train(module, 1));
  expect(std::abs(forward_list(mesh, module, rank, ranks)[0] - expected[0]) > 1e-3, "dropout in training mode");
  ok(dtensor_module_fully_shard(module));
  ok(dtensor_module_train(module, 0));
  ok(dtensor_module_save_torchscript(module, saved.c_str()));
  expect_close(forward_list(mesh, module, rank, ranks), expected, "the module after it was saved");
  dtensor_module_free(single);
  ok(dtensor_module_load_torchscript(alone, saved.c_str(), &single));
  expect_close(forward_list(alone, single, 0, 1), expected, "the saved module");
  const auto regular = torch::jit::load(saved);
  expect(regular.attr("weight").toTensor().requires_grad() && !regular.is_training(), "a regular module is saved");
  expect(dtensor_module_save_torchscript(module, "/no/such/folder/x.pt") == DTENSOR_INVALID_ARGUMENT, "no folder");
  dtensor_module_free(single);
  dtensor_module_free(module);
}

void check_refusal(dtensor_mesh* mesh) {
  dtensor_module* module = nullptr;
  expect(dtensor_module_load_torchscript(mesh, "no/such/file", &module) == DTENSOR_INVALID_ARGUMENT, "a missing file");
  expect(std::string(dtensor_last_error()).find("expected a file of torch.jit.save") != std::string::npos, "its text");
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0, rank = 0, ranks = 1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::string file = std::string(argc > 1 ? argv[1] : ".") + "/module_" + std::to_string(ranks) + ".pt";
  if (rank == 0) save_module(file);
  MPI_Barrier(MPI_COMM_WORLD);
  dtensor_mesh *mesh = nullptr, *alone = nullptr;
  const std::int64_t shape[] = {ranks};
  ok(dtensor_mesh_of_process(&alone));
  ok(dtensor_mesh_from_mpi(MPI_Comm_c2f(MPI_COMM_WORLD), 1, shape, "dp", &mesh));
  const Run expected = train(alone, file, 0, 1, false);
  expect(expected.losses.back() < expected.losses.front(), "the loss decreases");
  for (const bool fully_shard : {false, true}) {
    const Run got = train(mesh, file, rank, ranks, fully_shard);
    expect_close(got.losses, expected.losses, "losses");
    expect_close(got.weight, expected.weight, "a trained parameter");
  }
  check_second_module(mesh, alone, file + "_second", rank, ranks);
  check_refusal(mesh);
  dtensor_mesh_free(mesh);
  dtensor_mesh_free(alone);
  MPI_Finalize();
  return 0;
}
