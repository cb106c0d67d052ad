// Lists of parameters as ranks and programs may have them: with and without handles to other ranks' gradients.
#include <cstdlib>

#include "optim/mixture.h"

namespace dtensor::test {
namespace {

using List = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<Optimizer>(const List&)>;

const std::vector<std::pair<const char*, Make>>& spreading() {
  static const std::vector<std::pair<const char*, Make>> all{
      {"muon, which sends one type", [](const List& p) { return std::make_unique<Muon>(p); }},
      {"muon", [](const List& p) { return std::make_unique<Muon>(p, MuonOptions{.bfloat16 = false}); }},
      {"shampoo", [](const List& p) { return std::make_unique<Shampoo>(p, ShampooOptions{.start = 1}); }}};
  return all;
}

// The first is on ranks 0 and 1 only, and of the type of the last.
List three_of_two_types(const DeviceMesh& two, const DeviceMesh& all, bool everywhere) {
  Draw draw(1);
  List parameters;
  for (const bool first : {true, false, false}) {
    const auto dtype = parameters.size() == 1 ? at::kFloat : at::kDouble;
    const DeviceMesh& mesh = first ? two : all;
    const auto placed = [&] { return distribute_tensor(draw.normal({6, 6}, dtype), mesh, {Shard(0)}); };
    parameters.push_back(placed().requires_grad_());
    const at::Tensor gradient = placed();
    if (everywhere || mesh.is_member()) parameters.back().mutable_grad() = gradient;
  }
  return parameters;
}

// Lists over two meshes, which DTENSOR_CHECKED notes as calls of their first, are shorter without the handle.
TEST(Lists, RanksWithoutAHandleToAnothersGradientStepAlike) {
  const char* checked = std::getenv("DTENSOR_CHECKED");
  const std::string former = checked == nullptr ? "" : checked;
  ::unsetenv("DTENSOR_CHECKED");
  run_local(3, [](const Communicator& world) {
    const DeviceMesh all = init_device_mesh(world, at::kCPU, {3}), two = device_mesh(world, at::kCPU, {0, 1}, {2});
    for (const auto& [name, make] : spreading()) {
      const List with = three_of_two_types(two, all, true), without = three_of_two_types(two, all, false);
      for (const List* parameters : {&with, &without}) make(*parameters)->step();
      for (std::size_t i = 1; i < 3; ++i) EXPECT_TRUE(at::equal(whole_of(with[i]), whole_of(without[i]))) << name;
    }
  });
  if (checked != nullptr) ::setenv("DTENSOR_CHECKED", former.c_str(), 1);
}

}  // namespace
}  // namespace dtensor::test
