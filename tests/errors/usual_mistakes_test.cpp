// The common mistakes of docs/errors.md: each error names the operator or function, the operands, the mesh, the module,
// and the remedy.
#include <torch/library.h>
#include <torch/serialize.h>

#include <sstream>

#include "reported_errors.h"

namespace dtensor {
namespace {

using test::Alike;
using test::expect_error;
using test::expect_reported;
using test::texts_of;

const std::string kMesh = "DeviceMesh(";
const std::string kModule = "in h.0.mlp";

at::Tensor rows(const DeviceMesh& mesh) { return ones({4, 8}, mesh, {Shard(0), Replicate()}); }

// --- operators ---

TEST(UsualMistakes, ProductOfMismatchedSizes) {
  expect_error({"mat1 and mat2 shapes cannot be multiplied", "(4x8 and 6x2)",
                "in aten::mm(f32[4, 8] [S(0), R], f32[6, 2] [R, S(1)])", kMesh, "dp=2", kModule},
               [](const DeviceMesh& mesh) {
                 at::mm(rows(mesh), ones({6, 2}, mesh, {Replicate(), Shard(1)}));
               });
}

TEST(UsualMistakes, ProductOfDifferentDtypes) {
  expect_error({"to have the same dtype", "in aten::mm(f32[4, 8] [S(0), R], f64[8, 2] [R, R])", kModule},
               [](const DeviceMesh& mesh) {
                 at::mm(rows(mesh), ones({8, 2}, mesh, {}, at::kDouble));
               });
}

TEST(UsualMistakes, TwoMeshes) {
  expect_error({"operands on two meshes", "redistribute(mesh, placements)",
                "in aten::add.Tensor(f32[4, 8] [S(0), R], f32[4, 8] [R] on DeviceMesh(cpu, all=4", kModule},
               [](const DeviceMesh& mesh) {
                 at::add(rows(mesh), ones({4, 8}, init_device_mesh(mesh.world(), at::kCPU, {4}, {"all"})));
               });
}

TEST(UsualMistakes, RegularTensorThatDiffersBetweenRanks) {
  expect_error(
      {"is a regular tensor whose values differ between ranks", "operand `other` of sizes [4, 8]", "distribute_tensor",
       "DTensor::from_local", "in aten::add.Tensor(f32[4, 8] [S(0), R], regular Float[4, 8])", kModule},
      [](const DeviceMesh& mesh) {
        at::add(rows(mesh), at::ones({4, 8}) * mesh.world().rank());
      });
}

TEST(UsualMistakes, RegularTensorUnderStrict) {
  expect_error({"is a regular tensor among DTensors, which Strict refuses", "operand `other` of sizes [4, 8]",
                "in aten::add.Tensor(", kMesh, kModule},
               [](const DeviceMesh& mesh) {
                 const Strict strict;
                 at::add(rows(mesh), at::ones({4, 8}));
               });
}

TEST(UsualMistakes, OperatorWithoutARuleUnderStrict) {
  static auto library = [] {
    auto lib = std::make_unique<torch::Library>(torch::Library::DEF, "errors_test", std::nullopt, __FILE__, __LINE__);
    lib->def("twice(Tensor self) -> Tensor");
    lib->impl("twice", c10::DispatchKey::CPU, torch::CppFunction([](const at::Tensor& self) { return self.mul(2); }));
    return lib;
  }();
  const auto twice = c10::Dispatcher::singleton().findSchemaOrThrow("errors_test::twice", "");
  const auto op = twice.typed<at::Tensor(const at::Tensor&)>();
  expect_error({"has no sharding rule", "errors_test::twice", "docs/rules.md",
                "in errors_test::twice(f32[4, 8] [S(0), R])", kModule},
               [&](const DeviceMesh& mesh) {
                 const Strict strict;
                 op.call(rows(mesh));
               });
}

TEST(UsualMistakes, ImplicitRedistributionRefused) {
  expect_error({"ImplicitRedistributionScope refuses that", "aten::mm moves ", "Redistribute the operands first",
                "in aten::mm(f32[4, 8] [S(0), R], f32[8, 4] [S(0), R])", kModule},
               [](const DeviceMesh& mesh) {
                 const ImplicitRedistributionScope refuse;
                 at::mm(rows(mesh), ones({8, 4}, mesh, {Shard(0), Replicate()}));
               });
}

TEST(UsualMistakes, EmbeddingIndexOutOfRange) {
  expect_error({"index out of range in self", "in aten::embedding(f32[8, 4] [R, R], i64[3] [R, R])", kMesh, kModule},
               [](const DeviceMesh& mesh) {
                 at::embedding(ones({8, 4}, mesh), full({3}, 9, mesh, {}, at::kLong));
               });
}

TEST(UsualMistakes, DimensionOutOfRange) {
  expect_error({"Dimension out of range", "but got 7", "in aten::sum.dim_IntList(f32[4, 8] [S(0), R])", kMesh, kModule},
               [](const DeviceMesh& mesh) { rows(mesh).sum(at::IntArrayRef{7}); });
}

TEST(UsualMistakes, AsStridedBeyondTheTensor) {
  expect_error({"use select, slice, permute or view", "in aten::as_strided(f32[4, 8] [S(0), R])", kMesh, kModule},
               [](const DeviceMesh& mesh) {
                 rows(mesh).as_strided({100, 100}, {1, 1}, 0);
               });
}

// --- memory ---

const std::vector<std::string> kMemoryWords = {"no memory of its own", "DTensor(t).to_local()",
                                               "DTensor(t).full_tensor()", "Checkpoint"};

TEST(UsualMistakes, DataPointer) {
  expect_error(kMemoryWords, [](const DeviceMesh& mesh) { rows(mesh).data_ptr<float>(); });
  expect_error(kMemoryWords, [](const DeviceMesh& mesh) { at::mm(rows(mesh), rows(mesh).t()).const_data_ptr(); });
}

TEST(UsualMistakes, Accessor) {
  expect_error(kMemoryWords, [](const DeviceMesh& mesh) {
    const at::Tensor x = rows(mesh);
    x.accessor<float, 2>();
  });
}

TEST(UsualMistakes, Printing) {
  expect_error(kMemoryWords, [](const DeviceMesh& mesh) { std::ostringstream() << rows(mesh); });
}

TEST(UsualMistakes, Storage) {
  expect_error(kMemoryWords, [](const DeviceMesh& mesh) { (void)rows(mesh).storage(); });
}

TEST(UsualMistakes, TorchSave) {
  expect_error(kMemoryWords, [](const DeviceMesh& mesh) {
    std::ostringstream out;
    torch::save(rows(mesh), out);
  });
}

TEST(UsualMistakes, RegularTensorAsDTensor) {
  expect_error(
      {"expected a DTensor, got a regular", "CPUFloatType of sizes [4]", "distribute_tensor or DTensor::from_local"},
      [](const DeviceMesh&) { DTensor(at::ones({4})); });
}

// --- placements and meshes ---

TEST(UsualMistakes, OnePlacementForTwoAxes) {
  expect_error({"one placement per mesh dimension is needed", "1 given",
                "in distribute_tensor(regular Float[4, 8]) on ", "dp=2", kModule},
               [](const DeviceMesh& mesh) {
                 distribute_tensor(at::ones({4, 8}), mesh, {Shard(0)});
               });
}

TEST(UsualMistakes, ShardOfADimensionOutOfRange) {
  expect_error({"shards dimension", "S(2)", "in redistribute(f32[4, 8] [S(0), R]) on ", kMesh, kModule},
               [](const DeviceMesh& mesh) {
                 DTensor(rows(mesh)).redistribute({Shard(2), Replicate()});
               });
}

TEST(UsualMistakes, MeshOfMoreRanksThanTheWorld) {
  expect_reported(texts_of(2,
                           [](const Communicator& world) {
                             init_device_mesh(world, at::kCPU, {2, 2});
                           }),
                  {"ranks, but the world has", "needs 4", "has 2"});
}

TEST(UsualMistakes, UnknownMeshDimension) {
  expect_error({"the mesh has no dimension", "'ep'", "dp", "tp"}, [](const DeviceMesh& mesh) { (void)mesh["ep"]; });
}

TEST(UsualMistakes, FromLocalWithSizesOtherThanChunks) {
  expect_error(
      {"the local sizes are not the chunks of one tensor", "rank 0: Float [1, 8]", "in from_local(regular Float", kMesh,
       kModule},
      [](const DeviceMesh& mesh) {
        DTensor::from_local(at::ones({mesh.local_rank("dp") * 4 + 1, 8}), mesh, {Shard(0), Replicate()});
      },
      Alike::message);
}

TEST(UsualMistakes, FullTensorsOfDifferentSizes) {
  expect_error(
      {"expected the full tensor on every rank, but their sizes or dtypes differ", "rank 1: Float [2]",
       "in distribute_tensor(regular Float", kMesh, kModule},
      [](const DeviceMesh& mesh) {
        distribute_tensor(at::ones({mesh.world().rank() + 1}), mesh, {Replicate(), Replicate()});
      },
      Alike::message);
}

TEST(UsualMistakes, PlanThatMatchesNoParameter) {
  expect_error({"matches nothing; the nearest names are", "'mlp.upp'", "mlp.up"}, [](const DeviceMesh& mesh) {
    struct Model : nn::Module {
      nn::Linear up{4, 8};
      Model() { register_module("mlp.up", up); }
    } model;
    parallelize(model, mesh["tp"], {{"mlp.upp", ColwiseParallel()}});
  });
}

}  // namespace
}  // namespace dtensor
