// Tensors over the host's memory: no copy for any order of dimensions and any gaps, the values of the full tensor, and
// one error on all ranks. Handles are made of the meshes of thread ranks, which the C interface does not create.
#include <c10/util/ThreadLocalDebugInfo.h>

#include "c/handles.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

const std::vector<Shape> kMeshes{{1}, {2}, {3}, {4}, {2, 2}};

// Sums the bytes that this thread allocates through ATen during its lifetime.
class AllocatedBytes {
 public:
  std::int64_t bytes() const { return counter_->bytes; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    using c10::MemoryReportingInfoBase::reportMemoryUsage;
    void reportMemoryUsage(void* /*ptr*/, std::int64_t change, std::size_t /*allocated*/, std::size_t /*reserved*/,
                           c10::Device /*device*/) override {
      bytes += std::max<std::int64_t>(change, 0);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t bytes = 0;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

// An array of the host with a random order of dimensions and random gaps.
struct HostField {
  // `order` is drawn equally on all ranks, the gaps are not.
  HostField(const at::Tensor& values, const Shape& order, Draw& gaps) {
    Shape padded;
    for (const auto dim : order) padded.push_back(values.size(dim) + gaps.integer(0, 2));
    Shape inverse(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      inverse[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    memory = at::zeros(padded, values.options()).permute(inverse);
    for (std::int64_t dim = 0; dim < values.dim(); ++dim) memory = memory.narrow(dim, 0, values.size(dim));
    memory.copy_(values);
    array = {memory.data_ptr(), DTENSOR_FLOAT64, static_cast<int>(values.dim()), memory.sizes().data(),
             memory.strides().data()};
  }
  at::Tensor memory;
  dtensor_host_array array;
};

struct MeshHandle {
  explicit MeshHandle(const DeviceMesh& mesh) : handle(c::new_handle<dtensor_mesh>(c::Mesh{mesh})) {}
  ~MeshHandle() { dtensor_mesh_free(handle); }
  MeshHandle(const MeshHandle&) = delete;
  MeshHandle& operator=(const MeshHandle&) = delete;
  dtensor_mesh* handle;
};

struct TensorHandle {
  TensorHandle(const DeviceMesh& mesh, const dtensor_host_array& array, const std::string& placements) : on(mesh) {
    status = dtensor_tensor_from_host(on.handle, &array, placements.c_str(), &handle);
  }
  ~TensorHandle() { dtensor_tensor_free(handle); }
  TensorHandle(const TensorHandle&) = delete;
  TensorHandle& operator=(const TensorHandle&) = delete;

  void* address() {
    dtensor_host_array local{};
    EXPECT_EQ(dtensor_tensor_local(handle, &local), DTENSOR_OK) << dtensor_last_error();
    return local.data;
  }
  const DTensor& tensor() const { return c::object(handle).tensor; }

  MeshHandle on;
  dtensor_tensor* handle = nullptr;
  dtensor_status status;
};

Shape random_order(std::size_t ndim, Draw& draw) {
  Shape order(ndim);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), draw.engine());
  return order;
}

// Gradients of values and of their square equal those of the full tensor.
void check_gradient(DTensor x, const at::Tensor& full, const std::string& what) {
  x.requires_grad_();
  const at::Tensor reference = full.clone().requires_grad_();
  at::tanh(x).square().sum().backward();
  at::tanh(reference).square().sum().backward();
  expect_close(x.grad(), reference.grad(), what + ": gradient");
}

TEST(HostMemory, AnyOrderAndGapsAreSharedAndHaveTheValuesOfTheFullTensor) {
  for (const Shape& shape : kMeshes) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      Draw draw(5), gaps(static_cast<std::uint64_t>(mesh.world().rank()));
      for (int trial = 0; trial < 40; ++trial) {
        const at::Tensor full = draw.normal(draw.sizes(draw.integer(1, 4)));
        const Placements placements = draw.placements_of(mesh, full.sizes(), false);
        const std::string what = c10::str(full.sizes(), " ", to_string(placements));
        const at::Tensor part = distribute_tensor(full, mesh, placements).to_local();
        HostField field(part, random_order(static_cast<std::size_t>(full.dim()), draw), gaps);
        TensorHandle x(mesh, field.array, to_string(placements));
        ASSERT_EQ(x.status, DTENSOR_OK) << what << ": " << dtensor_last_error();
        EXPECT_TRUE(part.numel() == 0 || x.address() == field.array.data) << what;
        expect_close(x.tensor(), full, what);
        expect_close(x.tensor().reshape({-1}), full.reshape({-1}), what + ": flattened");
        check_gradient(x.tensor(), full, what);
      }
    });
  }
}

// Bytes that ATen allocates for the boundary and for a layer with one output are far fewer than those of the field.
TEST(HostMemory, LargeFieldsAreNotCopiedByCallsOrLayers) {
  constexpr std::int64_t kRows = 20000, kColumns = 64, kBytes = kRows * kColumns * 8;
  for (const bool column_major : {false, true}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      Draw gaps(1);
      HostField field(at::ones({kRows, kColumns}, at::kDouble), column_major ? Shape{1, 0} : Shape{0, 1}, gaps);
      const MeshHandle on(mesh);
      const std::int64_t sizes[] = {kColumns, 1};
      dtensor_module* layer = nullptr;
      ASSERT_EQ(dtensor_module_create(on.handle, "Linear", 2, sizes, nullptr, DTENSOR_FLOAT64, 1, &layer), DTENSOR_OK);
      const AllocatedBytes allocated;
      TensorHandle x(mesh, field.array, "[S(0)]");
      ASSERT_EQ(x.status, DTENSOR_OK) << dtensor_last_error();
      dtensor_tensor* y = nullptr;
      EXPECT_EQ(dtensor_module_forward(layer, x.handle, &y), DTENSOR_OK) << dtensor_last_error();
      EXPECT_EQ(x.address(), field.array.data);
      EXPECT_GT(allocated.bytes(), kRows * 8) << "the result is counted";
      EXPECT_LT(allocated.bytes(), kBytes / 8);
      dtensor_tensor_free(y);
      dtensor_module_free(layer);
    });
  }
}

// A write of the host changes what is derived from the tensor once it is announced.
TEST(HostMemory, AnAnnouncedWriteInvalidatesDerivedValues) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    double values[] = {1, 2, 3};
    const std::int64_t sizes[] = {3};
    TensorHandle x(mesh, {values, DTENSOR_FLOAT64, 1, sizes, nullptr}, "[P(sum)]");
    ASSERT_EQ(x.status, DTENSOR_OK);
    const DTensor& tensor = x.tensor();
    expect_close(at::exp(tensor), at::exp(at::tensor({2., 4., 6.}, at::kDouble)), "before");
    const auto before = tensor.generation();
    values[1] = 5;
    EXPECT_EQ(dtensor_tensor_increment_version(x.handle), DTENSOR_OK);
    EXPECT_GT(tensor.generation(), before);
    expect_close(at::exp(tensor), at::exp(at::tensor({2., 10., 6.}, at::kDouble)), "after");
  });
}

// Expects the same error on all ranks, with this part of its text.
void expect_refused(const DeviceMesh& mesh, const dtensor_host_array& array, const std::string& part) {
  TensorHandle x(mesh, array, "[S(0)]");
  EXPECT_EQ(x.status, DTENSOR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(dtensor_last_error()).find(part), std::string::npos) << dtensor_last_error();
  const auto hash = static_cast<std::int64_t>(std::hash<std::string>()(dtensor_last_error()));
  at::Tensor least = at::tensor({hash}, at::kLong), most = least.clone();
  mesh.world().all_reduce(least, ReduceOp::min).wait();
  mesh.world().all_reduce(most, ReduceOp::max).wait();
  EXPECT_TRUE(at::equal(least, most)) << dtensor_last_error();
}

TEST(HostMemory, InvalidStridesOnOneRankAreOneErrorOnAllRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_mesh({ranks}, [ranks](const DeviceMesh& mesh) {
      const bool last = mesh.world().rank() == ranks - 1;
      double values[40] = {};
      const std::int64_t sizes[] = {4, 3}, row_major[] = {3, 1}, column_major[] = {1, 4}, zero[] = {0, 1},
                         overlap[] = {2, 1}, negative[] = {3, -1};
      const auto array = [&](const std::int64_t* strides) {
        return dtensor_host_array{values, DTENSOR_FLOAT64, 2, sizes, last ? strides : row_major};
      };
      expect_refused(mesh, array(zero), "without overlapping elements");
      expect_refused(mesh, array(overlap), "without overlapping elements");
      expect_refused(mesh, array(negative), "expected a stride >= 0 of dimension 1, got -1");
      if (ranks > 1) expect_refused(mesh, array(column_major), "one order of dimensions on all ranks");
    });
  }
}

}  // namespace
}  // namespace dtensor::test
