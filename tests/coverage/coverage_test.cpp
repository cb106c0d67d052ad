// docs/coverage.md equals the dispatcher of this LibTorch, without unknown operators and with few gathered ones.
// Operators that another library registers later run replicated, and keep shards once they have a rule.
#include "coverage/coverage.h"

#include <dtensor/rule.h>
#include <torch/library.h>

#include <fstream>
#include <sstream>

#include "support/data.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

std::string read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string first_difference(const std::string& a, const std::string& b) {
  std::istringstream as(a), bs(b);
  std::string x, y;
  while (std::getline(as, x) && std::getline(bs, y)) {
    if (x != y) return "now\n  " + x + "\ninstead of\n  " + y;
  }
  return "one is longer";
}

TEST(Coverage, PageIsUpToDate) {
  const std::string now = coverage::page(coverage::table()), file = read(test::source_path("docs/coverage.md"));
  const std::string written = file.substr(0, file.find(coverage::kHandWrittenSection));
  EXPECT_TRUE(now == written) << first_difference(now, written)
                              << "\nTo update the page: tools/coverage docs/coverage.md";
}

TEST(Coverage, NothingIsUnknownAndFewAreReplicated) {
  int replicated = 0;
  for (const auto& entry : coverage::table()) {
    EXPECT_NE(entry.kind, coverage::Kind::none) << entry.op;
    replicated += entry.kind == coverage::Kind::replicate;
  }
  EXPECT_LE(replicated, 60);
  const std::string says = "gathered for a reason (" + std::to_string(replicated) + ")";
  EXPECT_NE(read(test::source_path("README.md")).find(says), std::string::npos) << "README.md: " << says;
}

at::Tensor scale_rows(const at::Tensor& x, const at::Tensor& s) { return x * s.unsqueeze(1); }

TEST(Coverage, OperatorsOfAnotherLibraryRunReplicatedUntilTheyHaveARule) {
  on_mesh({2},
          [](const DeviceMesh& mesh) { distribute_tensor(at::ones({2}), mesh, {Shard(0)}); });  // loads the library
  torch::Library library(torch::Library::DEF, "cover_test", std::nullopt, __FILE__, __LINE__);
  library.def("scale_rows(Tensor x, Tensor s) -> Tensor");
  library.impl("scale_rows", c10::DispatchKey::CPU, scale_rows);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("cover_test::scale_rows", "");
  const auto run = [&](const Placement& expected) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      Draw draw(1);
      const auto x = draw.normal({5, 3}), s = draw.normal({5});
      torch::jit::Stack stack{distribute_tensor(x, mesh, {Shard(0)}), distribute_tensor(s, mesh, {Shard(0)})};
      op.callBoxed(stack);
      EXPECT_EQ(DTensor(stack.at(0).toTensor()).placements(), (Placements{expected}));
      expect_close(stack.at(0).toTensor(), scale_rows(x, s), "scale_rows");
    });
  };
  run(Replicate());
  RuleBook::get().rule("cover_test::scale_rows", "mn, m -> mn").no_meta();
  run(Shard(0));
}

}  // namespace
}  // namespace dtensor::test
