// Tables of hardware: what is misspelt, unsorted or no number is one error, and nothing of it is read as a default.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "dtensor/estimate.h"
#include "support/draws.h"

namespace dtensor {
namespace {

std::string error_of(const std::string& json) {
  try {
    HardwareModel::parse(json);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "none";
}

const std::string kTable =
    R"({"name": "card", "rates": {"product bfloat16": [[1e6, 1e9], [1e9, 1e12]], "product": [[1e6, 1e9]],)"
    R"( "aten::mm float32": [[1e6, 1e9]], "attention": [[1e6, 1e9]], "norm": [[1e6, 1e9]], "elementwise": [[1e6, 1e9]]},)"
    R"( "operator_seconds": 1e-6, "peak_flops": {"bfloat16": 1e15}, "memory_bytes": 8e10, "asynchronous": true, "levels":)"
    R"( [{"name": "node", "ranks": 8, "latency": 1e-6, "bandwidth": 1e11}, {"name": "rack", "ranks": 64, "latency": 1e-5, "bandwidth": 1e10}]})";

// kTable with the first `from` replaced.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = kTable;
  const auto at = text.find(from);
  TORCH_CHECK(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

struct Change {
  const char *from, *to, *error;
};

TEST(HardwareTable, EachInvalidFieldIsAnError) {
  EXPECT_EQ(error_of(kTable), "none");
  EXPECT_EQ(error_of(changed("\"attention\"", "\"host\": [[1, 1e9]], \"transfer\": [[1, 1e9]], \"attention\"")),
            "none");
  for (const auto& [from, to, error] : {
           Change{"\"operator_seconds\"", "\"operator_second\"", "got 'operator_second'"},
           Change{"\"memory_bytes\"", "\"memory\"", "got 'memory'"},
           Change{"\"latency\"", "\"latncy\"", "got 'latncy'"},
           Change{"product bfloat16", "prodct bfloat16", "got 'prodct bfloat16'"},
           Change{"product bfloat16", "product bf16", "got 'product bf16'"},
           Change{"product bfloat16", "transfers", "elementwise, host, transfer or an operator such as aten::mm"},
           Change{"[1e9, 1e12]", "[1e5, 1e12]",
                  "positive rates of increasing sizes, got [100000, 1e+12] after size 1e+06"},
           Change{"[1e9, 1e12]", "[1e6, 1e12]", "positive rates of increasing sizes"},
           Change{"[1e6, 1e9]", "[1e6, 0]", "positive rates of increasing sizes"},
           Change{"[1e6, 1e9]", "[-1, 1e9]", "positive rates of increasing sizes"},
           Change{"[1e6, 1e9]", "[1e6]", "not a hardware table"},
           Change{"[1e6, 1e9]", "[1e6, \"fast\"]", "not a hardware table"},
           Change{"8e10", "-1", "memory_bytes, memory_reserve and operator_seconds of at least 0, got -1"},
           Change{"\"memory_bytes\"", "\"memory_reserve\": -2, \"memory_bytes\"", "of at least 0, got -2"},
           Change{"1e15", "0", "peak_flops of bfloat16: expected a positive number, got 0"},
           Change{"\"bandwidth\": 1e11", "\"bandwidth\": 0", "level 'node': expected a positive bandwidth"},
           Change{"\"bandwidth\": 1e11", "\"bandwidth\": [[1e6, 1e10], [1e5, 1e11]]",
                  "'node': expected positive rates of increasing sizes, got [100000, 1e+11] after size 1e+06"},
           Change{"\"bandwidth\": 1e11", "\"bandwidth\": []", "not a hardware table"},
           Change{"\"latency\": 1e-6", "\"latency\": -1", "level 'node': expected a positive bandwidth"},
           Change{"\"ranks\": 64", "\"ranks\": 8",
                  "level 'rack': expected more ranks than the 8 of the level before, got 8"},
           Change{"\"ranks\": 8", "\"ranks\": 0", "level 'node': expected more ranks than the 0"},
           Change{"\"name\": \"card\", ", "", "not a hardware table"},
           Change{"{\"name\": \"card\"", "[", "not a hardware table"},
       }) {
    EXPECT_NE(error_of(changed(from, to)).find(error), std::string::npos) << to << ": " << error_of(changed(from, to));
  }
}

// A call of the size of a point takes what was measured. Between points the bandwidth is interpolated, and a table that
// is written and read again has the same ones.
TEST(HardwareLevels, BandwidthMayDependOnTheSize) {
  const auto h = HardwareModel::parse(changed("\"bandwidth\": 1e11", "\"bandwidth\": [[1e6, 1e10], [1e8, 1e11]]"));
  for (const auto& hardware : {h, HardwareModel::parse(h.json())}) {
    for (const auto& [bytes, rate] :
         {std::pair(1e4, 1e10), {1e6, 1e10}, {1e7, std::sqrt(1e21)}, {1e8, 1e11}, {1e9, 1e11}}) {
      const double seconds = hardware.seconds("all_gather", {0, 1}, static_cast<std::int64_t>(bytes));
      EXPECT_NEAR(seconds / (1e-6 + bytes / rate), 1, 1e-9) << bytes;
    }
  }
}

// For any table, also where the links between nodes are faster than those inside.
RC_GTEST_PROP(HardwareLevels, CollectivesOverNodesAreNotCheaperThanInsideOne, ()) {
  using test::one_of;
  const std::int64_t node = one_of<std::int64_t>({2, 4, 8}), rack = node * one_of<std::int64_t>({2, 4});
  HardwareModel h;
  for (const auto& [name, ranks] : {std::pair("node", node), {"rack", rack}, {"cluster", std::int64_t{1} << 20}}) {
    h.levels.push_back({name, ranks, one_of({0.0, 1e-6, 1e-5}), one_of({1e9, 1e10, 1e11, 1e12})});
    if (one_of({false, true})) h.levels.back().bandwidths = {{1e4, one_of({1e8, 1e10})}, {1e8, one_of({1e10, 1e12})}};
  }
  const auto size = static_cast<std::size_t>(*rc::gen::inRange<std::int64_t>(2, node + 1));
  std::vector<std::int64_t> inside;
  for (std::size_t r = 0; r < size; ++r) inside.push_back(static_cast<std::int64_t>(r));
  // As many ranks, in equal parts of some nodes.
  const auto parts =
      *rc::gen::suchThat(rc::gen::inRange<std::size_t>(2, size + 1), [&](auto n) { return size % n == 0; });
  const auto stride = one_of({node, rack});
  std::vector<std::int64_t> over;
  for (std::size_t r = 0; r < size; ++r) {
    over.push_back(static_cast<std::int64_t>(r / (size / parts)) * stride +
                   static_cast<std::int64_t>(r % (size / parts)));
  }
  const auto bytes = one_of<std::int64_t>({0, 1000, 1'000'000'000});
  for (const char* collective : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"}) {
    RC_ASSERT(h.seconds(collective, over, bytes) >= h.seconds(collective, inside, bytes) * (1 - 1e-9));
  }
}

}  // namespace
}  // namespace dtensor
