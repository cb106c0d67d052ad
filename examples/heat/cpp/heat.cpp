// A solver of the heat equation u_t = (k(u) u_x)_x + s(x, t) that owns MPI and trains a model of the coefficient k
// while it runs. It then goes on with the model alone, and with a constant coefficient for comparison. The field and
// the model have the same bits on any number of ranks.
//
//   mpirun -n 4 heat [STEPS] [CELLS]
//
// The domain is periodic; each rank owns cells / ranks cells, and the face at the left of each. The model sees the
// fields of faces in the solver's own memory. The program returns 1 if the model is not far better than the constant.
#include <ATen/core/grad_mode.h>
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numbers>
#include <string>
#include <vector>

#include <dtensor/bit_identical.h>
#include <dtensor/dtensor.h>
#include <dtensor/mpi.h>

namespace {

using namespace dtensor;

constexpr double kMeanCoefficient = 0.6;

// The coefficient as a function of the temperature at a face: [faces, 1] to [faces, 1].
class CoefficientModel final : public nn::Callable<CoefficientModel> {
 public:
  CoefficientModel()
      : first_(1, 16, true, at::kDouble), second_(16, 16, true, at::kDouble), last_(16, 1, true, at::kDouble) {
    register_module("first", first_);
    register_module("second", second_);
    register_module("last", last_);
  }
  // Of the hidden layer's weights.
  std::string content_hash() const { return BitIdentical::content_hash(second_.weight); }
  at::Tensor forward(const at::Tensor& faces) const { return last_(at::tanh(second_(at::tanh(first_(faces))))); }

 private:
  nn::Linear first_, second_, last_;
};

class Solver {
 public:
  // Computes the coefficients at faces from their temperatures.
  using Closure = std::function<void(Solver&)>;

  Solver(MPI_Comm comm, std::int64_t cells) : comm_(comm), cells_(cells) {
    MPI_Comm_rank(comm, &rank_);
    MPI_Comm_size(comm, &ranks_);
    width_ = 2 * std::numbers::pi / static_cast<double>(cells);
    time_step_ = 0.2 * width_ * width_;
    const auto own = static_cast<std::size_t>(cells / ranks_);
    u_.resize(own);
    faces_.resize(own);
    k_.resize(own);
    for (std::size_t i = 0; i < own; ++i) u_[i] = std::sin(position(i)) + 0.3 * std::cos(2 * position(i));
  }

  void step(const Closure& closure) {
    const std::size_t own = u_.size();
    std::vector<double> flux(own);
    const double left = exchange(u_.back(), 1);
    for (std::size_t i = 0; i < own; ++i) faces_[i] = ((i > 0 ? u_[i - 1] : left) + u_[i]) / 2;
    closure(*this);
    for (std::size_t i = 0; i < own; ++i) flux[i] = k_[i] * (u_[i] - (i > 0 ? u_[i - 1] : left)) / width_;
    const double last = exchange(flux.front(), -1);
    for (std::size_t i = 0; i < own; ++i) {
      const double right = i + 1 < own ? flux[i + 1] : last;
      u_[i] += time_step_ * ((right - flux[i]) / width_ + 2 * std::sin(position(i) - 2 * time_));
    }
    time_ += time_step_;
  }

  // The largest difference between the temperatures of two solvers, over all ranks.
  double difference(const Solver& other) const {
    double own = 0, largest = 0;
    for (std::size_t i = 0; i < u_.size(); ++i) own = std::max(own, std::abs(u_[i] - other.u_[i]));
    MPI_Allreduce(&own, &largest, 1, MPI_DOUBLE, MPI_MAX, comm_);
    return largest;
  }

  // This rank's part of the fields as tensors [cells, 1], without a copy: temperatures of cells; at faces, temperatures
  // and coefficients.
  at::Tensor cells(const DeviceMesh& mesh) { return field(u_, mesh); }
  at::Tensor faces(const DeviceMesh& mesh) { return field(faces_, mesh); }
  at::Tensor coefficients(const DeviceMesh& mesh) { return field(k_, mesh); }

  void exact_coefficients() {
    for (std::size_t i = 0; i < k_.size(); ++i) k_[i] = 0.2 + 0.8 * faces_[i] * faces_[i];
  }
  void constant_coefficients() { std::fill(k_.begin(), k_.end(), kMeanCoefficient); }

 private:
  at::Tensor field(std::vector<double>& values, const DeviceMesh& mesh) const {
    const at::Tensor local = at::from_blob(values.data(), {cells_ / ranks_, 1}, at::kDouble);
    return DTensor::from_local(local, mesh, {Shard(0)}, {cells_, 1});
  }
  double position(std::size_t i) const {
    return width_ * (static_cast<double>(i) + static_cast<double>(rank_ * cells_ / ranks_));
  }
  // Sends a value to the next (1) or previous (-1) rank and receives that of the other neighbor.
  double exchange(double value, int direction) const {
    double received = 0;
    MPI_Sendrecv(&value, 1, MPI_DOUBLE, (rank_ + direction + ranks_) % ranks_, 0, &received, 1, MPI_DOUBLE,
                 (rank_ - direction + ranks_) % ranks_, 0, comm_, MPI_STATUS_IGNORE);
    return received;
  }

  MPI_Comm comm_;
  std::int64_t cells_;
  int rank_ = 0, ranks_ = 1;
  double width_ = 0, time_step_ = 0, time_ = 0;
  std::vector<double> u_, faces_, k_;
};

// Trains the model by one optimizer step for each step of the solver. Returns the last loss.
double train(CoefficientModel& model, Solver& solver, const DeviceMesh& mesh, int steps) {
  AdamW optimizer(model.parameters(), {.lr = 5e-3, .weight_decay = 0, .fused = false});
  double last = 0;
  for (int i = 0; i < steps; ++i) {
    solver.step([&](Solver& s) {
      s.exact_coefficients();
      optimizer.zero_grad();
      const at::Tensor loss = at::mse_loss(model(s.faces(mesh)), s.coefficients(mesh));
      loss.backward();
      optimizer.step();
      last = DTensor(loss).full_tensor().item<double>();
    });
  }
  return last;
}

int run(MPI_Comm comm, int steps, std::int64_t cells) {
  const Communicator ranks = from_mpi(comm);
  TORCH_CHECK(steps > 0 && cells > 0 && cells % ranks.size() == 0,
              "heat: expected STEPS > 0 and CELLS > 0, a multiple ", "of ", ranks.size(), " ranks, got ", steps,
              " and ", cells);
  const DeviceMesh mesh = init_device_mesh(ranks, at::kCPU, {ranks.size()}, {"dp"});
  const BitIdentical same_bits(16);  // sums of blocks of 16 cells, which a rank should not divide
  manual_seed(mesh, 7);
  std::unique_ptr<CoefficientModel> model;
  {
    const MeshScope scope(mesh);  // parameters are DTensors
    model = std::make_unique<CoefficientModel>();
  }
  Solver exact(comm, cells);
  const double loss = train(*model, exact, mesh, steps);
  Solver modeled = exact, constant = exact;
  const at::NoGradGuard no_grad;
  for (int i = 0; i < steps / 2; ++i) {
    exact.step([](Solver& s) { s.exact_coefficients(); });
    modeled.step([&](Solver& s) { s.coefficients(mesh).copy_((*model)(s.faces(mesh))); });
    constant.step([](Solver& s) { s.constant_coefficients(); });
  }
  const double error = modeled.difference(exact), reference = constant.difference(exact);
  const std::string field = BitIdentical::content_hash(modeled.cells(mesh)), weights = model->content_hash();
  if (ranks.rank() == 0) {
    std::printf("loss %.6e, error with the model %.6e, with a constant coefficient %.6e\n", loss, error, reference);
    std::printf("SHA-256 of the field %s\n", field.c_str());
    std::printf("SHA-256 of the model %s\n", weights.c_str());
  }
  return error < reference / 5 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0, status = 1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  try {
    status = run(MPI_COMM_WORLD, argc > 1 ? std::atoi(argv[1]) : 600, argc > 2 ? std::atoi(argv[2]) : 64);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    MPI_Abort(MPI_COMM_WORLD, 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return status;
}
