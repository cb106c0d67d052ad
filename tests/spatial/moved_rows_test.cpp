// Slices, differences, crops and concatenations along a sharded dimension move the rows whose owner changes, and
// nothing else: bytes by a count of rows, at batch 1, forward, backward and in the second derivative. Fourier
// transforms and means move no full image either. A dry run predicts the same collectives.
#include <torch/torch.h>

#include "dtensor/dry_run.h"
#include "spatial/operators.h"

namespace dtensor::test {
namespace {

constexpr std::int64_t kChannels = 2, kColumns = 10, kRowBytes = kChannels * kColumns * 8;

// For each row of a result, the source row: of which tensor (by its number of rows) and where.
struct SourceRow {
  std::int64_t tensor_rows, row;
};
using Exchange = std::vector<SourceRow>;

Exchange rows_from(std::int64_t rows, std::int64_t begin, std::int64_t end, std::int64_t step = 1) {
  Exchange all;
  for (auto row = begin; row < end; row += step) all.push_back({rows, row});
  return all;
}

Exchange joined(std::initializer_list<Exchange> parts) {
  Exchange all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

using Exchanges = std::vector<Exchange>;
using Run = std::function<at::Tensor(const at::Tensor&)>;
using T = const at::Tensor&;

struct MovedRows {
  const char* name;
  Run run;
  std::function<Exchanges(std::int64_t rows)> exchanges;
};

// One exchange for each slice: rows [begin, end) of all.
Exchanges central_differences(std::int64_t n) {
  return {rows_from(n, 1, 2),
          rows_from(n, 0, 1),
          rows_from(n, n - 1, n),
          rows_from(n, n - 2, n - 1),
          rows_from(n, 2, n),
          rows_from(n, 0, n - 2),
          joined({rows_from(1, 0, 1), rows_from(n - 2, 0, n - 2), rows_from(1, 0, 1)})};
}

std::vector<MovedRows> table() {
  const auto difference = [](std::int64_t n) { return Exchanges{rows_from(n, 1, n), rows_from(n, 0, n - 1)}; };
  return {
      {"x[1:] - x[:-1]", [](T x) { return x.slice(2, 1) - x.slice(2, 0, -1); }, difference},
      {"diff", [](T x) { return x.diff(1, 2); }, difference},
      {"gradient", [](T x) { return at::gradient(x, std::nullopt, std::optional<std::int64_t>(2))[0]; },
       central_differences},
      {"narrow", [](T x) { return x.narrow(2, 2, 3); }, [](std::int64_t n) { return Exchanges{rows_from(n, 2, 5)}; }},
      {"crop", [](T x) { return x.slice(2, 1, -1).slice(3, 2, -2); },
       [](std::int64_t n) { return Exchanges{rows_from(n, 1, n - 1)}; }},
      {"every second row", [](T x) { return x.slice(2, 1, std::nullopt, 2); },
       [](std::int64_t n) { return Exchanges{rows_from(n, 1, n, 2)}; }},
      {"periodic rows",
       [](T x) {
         return at::cat({x.slice(2, -1), x, x.slice(2, 0, 1)}, 2);
       },
       [](std::int64_t n) {
         return Exchanges{rows_from(n, n - 1, n), rows_from(n, 0, 1),
                          joined({rows_from(1, 0, 1), rows_from(n, 0, n), rows_from(1, 0, 1)})};
       }},
      {"pad and crop",
       [](T x) {
         return at::constant_pad_nd(x, {0, 0, 1, 2}).slice(2, 1, -2);
       },
       [](std::int64_t n) {
         return Exchanges{joined({{{0, 0}}, rows_from(n, 0, n), {{0, 0}, {0, 0}}}), rows_from(n + 3, 1, n + 1)};
       }},
      {"halves",
       [](T x) {
         return at::cat(x.split_with_sizes({2, x.size(2) - 2}, 2), 2);
       },
       [](std::int64_t n) {
         return Exchanges{rows_from(n, 0, 2), rows_from(n, 2, n),
                          joined({rows_from(2, 0, 2), rows_from(n - 2, 0, n - 2)})};
       }},
  };
}

std::int64_t owner(std::int64_t row, std::int64_t rows, std::int64_t ranks) {
  return row / ((rows + ranks - 1) / ranks);
}

// Rows that a rank receives; in `backward`, of the gradients. Rows of no tensor are padding.
std::int64_t received(const Exchanges& exchanges, std::int64_t rank, std::int64_t ranks, bool backward,
                      const std::vector<std::int64_t>& sizes) {
  std::int64_t count = 0;
  for (std::size_t e = 0; e < exchanges.size(); ++e) {
    for (std::size_t j = 0; j < exchanges[e].size(); ++j) {
      const auto [rows, row] = exchanges[e][j];
      if (rows == 0) continue;
      const auto from = owner(row, rows, ranks);
      const auto to = owner(static_cast<std::int64_t>(j), sizes[e], ranks);
      count += from != to && (backward ? from : to) == rank ? 1 : 0;
    }
  }
  return count;
}

std::vector<std::int64_t> sizes_of(const Exchanges& exchanges) {
  std::vector<std::int64_t> sizes;
  for (const auto& e : exchanges) sizes.push_back(std::ssize(e));
  return sizes;
}

// Bytes received up to the result, its first derivative, and its second derivative.
using Bytes = std::array<std::int64_t, 3>;

struct Derivatives {
  Tensors values;
  Bytes bytes = {};
};

// Derivatives of the sum of squares of the result, weighted by `factors`; of the gradient, weighted by `others`.
Derivatives derivatives(const Run& run, const at::Tensor& x, const at::Tensor& factors, const at::Tensor& others) {
  std::int64_t bytes = 0;
  const EventListener listener([&](const Event& e) { bytes += e.bytes; }, {Event::Kind::collective});
  Derivatives all;
  const at::Tensor y = run(x);
  all.bytes[0] = std::exchange(bytes, 0);
  const at::Tensor first = torch::autograd::grad({(y.square() * factors).sum()}, {x}, {}, true, true)[0];
  all.bytes[1] = std::exchange(bytes, 0);
  const at::Tensor second = torch::autograd::grad({(first * others).sum()}, {x})[0];
  all.bytes[2] = std::exchange(bytes, 0);
  all.values = {y.detach(), first.detach(), second};
  return all;
}

Derivatives on_rows(const Run& run, const Tensors& values, const DeviceMesh& mesh) {
  Tensors placed;
  for (const auto& t : values) placed.push_back(distribute_tensor(t, mesh, {Shard(2)}));
  return derivatives(run, at::Tensor(placed[0]).requires_grad_(), placed[1], placed[2]);
}

Tensors operands(const Run& run, std::int64_t rows) {
  Draw draw(static_cast<std::uint64_t>(rows));
  const at::Tensor x = draw.normal({1, kChannels, rows, kColumns});
  return {x, draw.normal(run(x).sizes().vec()), draw.normal(x.sizes().vec())};
}

TEST(MovedRows, BytesAreThoseOfRowsThatChangeTheirRank) {
  for (const auto& row : table()) {
    for (const int ranks : {2, 3, 4}) {
      for (const std::int64_t rows : {5, 11, 12}) {
        const auto values = operands(row.run, rows);
        const auto expected = derivatives(row.run, values[0].clone().requires_grad_(), values[1], values[2]);
        const auto exchanges = row.exchanges(rows);
        on_mesh({ranks}, [&](const DeviceMesh& mesh) {
          const auto got = on_rows(row.run, values, mesh);
          const auto what = c10::str(row.name, " of ", rows, " rows on ", ranks, " ranks");
          const auto me = mesh.coordinate()->at(0);
          const auto rows_of = [&](bool back) { return received(exchanges, me, ranks, back, sizes_of(exchanges)); };
          EXPECT_EQ(got.bytes[0], rows_of(false) * kRowBytes) << what;
          EXPECT_EQ(got.bytes[1], rows_of(true) * kRowBytes) << what;
          EXPECT_EQ(got.bytes[2], (rows_of(false) + rows_of(true)) * kRowBytes) << what;
          for (std::size_t i = 0; i < 3; ++i) expect_close(got.values[i], expected.values[i], c10::str(what, ", ", i));
        });
      }
    }
  }
}

struct Transform {
  const char* name;
  Run run;
  const char* collective;
};

// A transform needs all rows of a column: one all-to-all each way. A mean needs one number for each channel.
std::vector<Transform> transforms() {
  return {{"rfft2", [](T x) { return at::view_as_real(at::fft_rfft2(x)).square().sum(-1); }, "all_to_all"},
          {"irfft2",
           [](T x) {
             return at::fft_irfft2(at::complex(x, x), at::IntArrayRef{x.size(2), 9});
           },
           "all_to_all"},
          {"mean",
           [](T x) {
             return x.square().mean(at::IntArrayRef{2, 3}, true);
           },
           "all_reduce"},
          {"x - mean",
           [](T x) {
             return x - x.mean(at::IntArrayRef{2, 3}, true);
           },
           "all_reduce"}};
}

TEST(MovedRows, TransformsAndMeansGatherNoImage) {
  constexpr std::int64_t kRows = 11, kComplex = 16;
  for (const auto& row : transforms()) {
    for (const int ranks : {2, 3, 4}) {
      const auto values = operands(row.run, kRows);
      const auto expected = derivatives(row.run, values[0].clone().requires_grad_(), values[1], values[2]);
      on_mesh({ranks}, [&](const DeviceMesh& mesh) {
        const auto what = c10::str(row.name, " on ", ranks, " ranks");
        const auto part = [&](std::int64_t n) { return (n + ranks - 1) / ranks; };
        const auto most = std::string(row.collective) == "all_reduce"
                              ? 2 * kChannels * 8
                              : part(kRows) * part(kColumns) * kChannels * kComplex * (ranks - 1);
        Tensors placed;
        for (const auto& t : values) {
          placed.push_back(distribute_tensor(t, mesh, {t.size(2) == kRows ? Placement(Shard(2)) : Replicate()}));
        }
        const auto check = [&](const Event& e) {
          EXPECT_EQ(e.name, row.collective) << what;
          EXPECT_LE(e.bytes, most) << what;
        };
        auto listener = std::make_unique<EventListener>(check, EventListener::Kinds{Event::Kind::collective});
        const auto got = derivatives(row.run, at::Tensor(placed[0]).requires_grad_(), placed[1], placed[2]);
        listener.reset();
        for (std::size_t i = 0; i < 3; ++i) expect_close(got.values[i], expected.values[i], c10::str(what, ", ", i));
      });
    }
  }
}

TEST(MovedRows, DryRunPredictsTheCollectives) {
  constexpr int kRanks = 4;
  const auto counted = [](const DryRunReport& report) {
    std::map<std::string, std::pair<std::int64_t, std::int64_t>> all;
    for (const auto& [key, count] : report.collectives) all[key.first] = {count.calls, count.bytes};
    return all;
  };
  for (const auto& row : table()) {
    const auto values = operands(row.run, 11);
    const auto run = [&](const Communicator& world) {
      on_rows(row.run, values, init_device_mesh(world, at::kCPU, {kRanks}));
    };
    std::vector<DryRunReport> measured(kRanks);
    run_local(kRanks, [&](const Communicator& world) {
      const StepRecorder recorder;
      run(world);
      measured[static_cast<std::size_t>(world.rank())] = recorder.report(world);
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto predicted = dry_run({.ranks = kRanks, .rank = rank}, run);
      EXPECT_EQ(counted(predicted), counted(measured[static_cast<std::size_t>(rank)])) << row.name << ", rank " << rank;
    }
  }
}

}  // namespace
}  // namespace dtensor::test
