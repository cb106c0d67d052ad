// The C interface on a device that is neither the CPU nor an NVIDIA GPU: the fake device, whose name LibTorch learns
// from its backend as it does those of others. Collectives copy through the host.
#include <gtest/gtest.h>

#include "c/handles.h"
#include "c/status.h"
#include "other_device/fake_device.h"
#include "support/draws.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

void ok(dtensor_status status) { ASSERT_EQ(status, DTENSOR_OK) << dtensor_last_error(); }

// Losses of a training run whose fields are in host memory, copied to a mesh of the device, or without a device.
std::vector<double> losses(const DeviceMesh& mesh, const char* device, bool shard) {
  const auto rank = mesh.world().rank();
  const std::int64_t widths[] = {3, 8, 2}, x_sizes[] = {4, 3}, y_sizes[] = {4, 2};
  std::vector<double> result;
  at::Tensor field = Draw(static_cast<std::uint64_t>(10 + rank)).normal({4, 3}), goal = field.slice(1, 0, 2).sin();
  goal = goal.contiguous();
  const dtensor_host_array x_array{field.data_ptr(), DTENSOR_FLOAT64, 2, x_sizes, nullptr};
  const dtensor_host_array y_array{goal.data_ptr(), DTENSOR_FLOAT64, 2, y_sizes, nullptr};
  auto* host = c::new_handle<dtensor_mesh>(c::Mesh{mesh});
  dtensor_mesh* on = host;
  dtensor_tensor *x = nullptr, *y = nullptr;
  ok(dtensor_tensor_from_host(host, &x_array, "[S(0)]", &x));
  ok(dtensor_tensor_from_host(host, &y_array, "[S(0)]", &y));
  if (device != nullptr) {
    ok(dtensor_mesh_on_device(host, device, &on));
    for (dtensor_tensor** tensor : {&x, &y}) {
      dtensor_tensor* here = *tensor;
      ok(dtensor_tensor_to_mesh(here, on, tensor));
      dtensor_tensor_free(here);
      EXPECT_EQ(c::object(*tensor).tensor.to_local().device().type(), fake::kDevice);
    }
  }
  dtensor_module* module = nullptr;
  dtensor_optimizer* adam = nullptr;
  ok(dtensor_module_create(on, "Perceptron", 3, widths, "tanh", DTENSOR_FLOAT64, 7, &module));
  if (shard) ok(dtensor_module_fully_shard(module));
  ok(dtensor_optimizer_adamw(module, 1e-2, 0.9, 0.999, 1e-8, 0.01, &adam));
  for (int step = 0; step < 4; ++step) {
    dtensor_tensor *prediction = nullptr, *loss = nullptr, *back = nullptr;
    ok(dtensor_optimizer_zero_grad(adam));
    ok(dtensor_module_forward(module, x, &prediction));
    ok(dtensor_tensor_to_mesh(prediction, host, &back));  // to the host and there to the loss: gradients return
    dtensor_tensor_free(prediction);
    ok(dtensor_tensor_to_mesh(back, on, &prediction));
    ok(dtensor_mse_loss(prediction, y, &loss));
    ok(dtensor_tensor_item(loss, &result.emplace_back()));
    ok(dtensor_tensor_backward(loss, nullptr));
    ok(dtensor_optimizer_step(adam));
    for (auto* tensor : {prediction, loss, back}) dtensor_tensor_free(tensor);
  }
  for (auto* tensor : {x, y}) dtensor_tensor_free(tensor);
  dtensor_optimizer_free(adam);
  dtensor_module_free(module);
  if (on != host) dtensor_mesh_free(on);
  dtensor_mesh_free(host);
  return result;
}

TEST(OtherDevice, CInterfaceTrainsOnADeviceByName) {
  fake::start();
  for (const int ranks : {1, 2, 3}) {
    for (const bool shard : {false, true}) {
      run_local(ranks, [&](const Communicator& world) {
        const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {ranks});
        const auto here = losses(mesh, nullptr, shard);
        for (const char* device : {"fake", "fake:0"}) EXPECT_EQ(losses(mesh, device, shard), here) << device;
        EXPECT_LT(here[3], here[0]);
      });
    }
  }
}

TEST(OtherDevice, DevicesThatAreNotThereAreErrors) {
  fake::start();
  run_local(2, [&](const Communicator& world) {
    auto* host = c::new_handle<dtensor_mesh>(c::Mesh{init_device_mesh(world, at::kCPU, {2})});
    const std::pair<const char*, const char*> devices[] = {
        {"fake:1", "it finds 1 of this type"},
        {"xpu", "it finds 0 of this type"},
        {"mps:0", "it finds 0 of this type"},
        {"cuda", "it finds 0 of this type"},
        {"meta", "it finds 0 of this type"},
        {"gpu", "device string: gpu"},
        {"", "must not be empty"},
        {nullptr, "got a null pointer"},
    };
    for (const auto& [name, text] : devices) {
      dtensor_mesh* on = nullptr;
      EXPECT_EQ(dtensor_mesh_on_device(host, name, &on), DTENSOR_INVALID_ARGUMENT);
      EXPECT_NE(std::string(dtensor_last_error()).find(text), std::string::npos) << dtensor_last_error();
    }
    dtensor_mesh* on = nullptr;  // the same error on both ranks, which can go on
    EXPECT_EQ(dtensor_mesh_on_device(host, world.rank() == 0 ? "fake" : "xpu", &on), DTENSOR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(dtensor_last_error()).find("rank 1"), std::string::npos) << dtensor_last_error();
    ok(dtensor_mesh_on_device(host, "fake", &on));
    dtensor_mesh_free(on);
    dtensor_mesh_free(host);
  });
}

}  // namespace
}  // namespace dtensor::test
