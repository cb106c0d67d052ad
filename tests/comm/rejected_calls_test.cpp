// Calls that are rejected for their arguments, on this rank alone, before communication.
#include <rapidcheck.h>

#include <algorithm>
#include <utility>

#include "comm/fixture.h"
#include "dtensor/comm_backend.h"

namespace dtensor::test {
namespace {

// Gathers from memory that is freed before the next call.
void gather_something(const Communicator& world) {
  const std::vector<at::Tensor> all(static_cast<std::size_t>(world.size()));
  std::vector<at::Tensor> outputs;
  for (std::size_t i = 0; i < all.size(); ++i) outputs.push_back(at::zeros({2}));
  world.all_gather(outputs, at::ones({2})).wait();
}

void expect_rejected(const std::string& what, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error contains: " << what;
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
  }
}

TEST(RefusedCalls, DoNotCountAsCollectives) {
  run_local(2, [](Communicator world) {
    for (int i = 0; i < 3; ++i) gather_something(world);
    if (world.rank() == 0) {
      expect_rejected("expected 2 outputs, one per rank, got 1",
                      [&] { world.all_gather({at::zeros({2})}, at::ones({2})); });
      expect_rejected("avg does not support Int", [&] { world.all_reduce(at::ones({2}, at::kInt), ReduceOp::avg); });
      expect_rejected("expected a rank in [0, ", [&] { world.broadcast(at::ones({2}), 7); });
    }
    const at::Tensor sum = at::ones({4});
    world.all_reduce(sum, ReduceOp::sum).wait();
    EXPECT_TRUE(sum.eq(2).all().item<bool>());
  });
}

// Diverged ranks report what each of them called, without traces of earlier calls.
TEST(RefusedCalls, DivergedRanksReportTheirCalls) {
  run_local(2, [](Communicator world) {
    for (int i = 0; i < 3; ++i) gather_something(world);
    if (world.rank() == 0) backend_of(world)->next_sequence(CollectiveKind::all_reduce);
    try {
      world.all_reduce(at::ones({4 + world.rank()}), ReduceOp::sum).wait();
      ADD_FAILURE();
    } catch (const CommError& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find("rank 0 called all_reduce #5 (sum, Float [4])"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 1 called all_reduce #4 (sum, Float [5])"), std::string::npos) << text;
    }
  });
}

// Tags outside [0, Communicator::kMessageTags) are rejected on threads and between processes.
TEST(RefusedCalls, TagsOutOfRangeAreRefused) {
  run_local(2, [](Communicator world) {
    const int other = 1 - world.rank();
    const at::Tensor x = at::ones({2}), y = at::zeros({2});
    for (const int tag : {-1, Communicator::kMessageTags}) {
      const std::string text = "expected a tag in [0, 1024), got " + std::to_string(tag);
      expect_rejected("send: " + text, [&] { world.send(x, other, tag); });
      expect_rejected("recv: " + text, [&] { world.recv(y, other, tag); });
    }
    const Work sent = world.send(x, other, Communicator::kMessageTags - 1);
    world.recv(y, other, Communicator::kMessageTags - 1).wait();
    EXPECT_TRUE(at::equal(x, y));
  });
}

// Overlapping outputs would have values that depend on the order of arrival.
TEST(RefusedCalls, OverlappingOutputsAreRefused) {
  run_local(2, [](Communicator world) {
    const at::Tensor x = at::ones({4}), y = at::ones({4}), matrix = at::ones({4, 4});
    const auto part = [&](std::int64_t first) { return x.narrow(0, first, 3); };
    expect_rejected("two outputs overlap", [&] { world.all_gather({x, x}, y); });
    expect_rejected("two outputs overlap", [&] { world.all_gather({part(1), part(0)}, at::ones({3})); });
    expect_rejected("two outputs overlap", [&] { world.all_gather({matrix.select(1, 2), matrix.select(1, 2)}, y); });
    expect_rejected("two outputs overlap", [&] { world.all_to_all({x, x}, {y, y}); });
    expect_rejected("two outputs overlap", [&] { world.all_reduce_list({x, x}, ReduceOp::sum); });
    expect_rejected("two outputs overlap", [&] { world.reduce_scatter_list({x, x}, {y, y, y, y}, ReduceOp::sum); });
    expect_rejected("two outputs overlap", [&] {
      world.all_gather_list({x, at::ones({4}), y, x}, {matrix[0], matrix[1]});
    });
    EXPECT_TRUE(x.eq(1).all().item<bool>());
  });
}

// Rows and columns: ranks would read memory that others have already written.
TEST(RefusedCalls, OutputsOverlappingInputsAreRefused) {
  run_local(2, [](Communicator world) {
    const at::Tensor matrix = at::ones({4, 4}), column = matrix.select(1, 1);
    for (const std::int64_t dim : {0, 1}) {
      const auto both = matrix.narrow(dim, 0, 2).unbind(dim);
      expect_rejected("an output overlaps an input", [&] { world.all_to_all(both, both); });
      expect_rejected("an output overlaps an input", [&] { world.all_reduce(both[0], both[0], ReduceOp::sum); });
      expect_rejected("an output overlaps an input", [&] { world.reduce_scatter(both[1], both, ReduceOp::sum); });
    }
    const at::Tensor x = at::ones({6}), y = at::ones({6});
    expect_rejected("an output overlaps an input", [&] { world.all_reduce(x, x[1].expand({6}), ReduceOp::sum); });
    const auto one = [&](std::int64_t at) { return x.narrow(0, at, 1); };  // inside one input, after another
    expect_rejected("an output overlaps an input", [&] {
      world.all_gather_list({y, one(4), at::ones({6}), at::ones({1})}, {x, one(1)});
    });
    world.all_reduce(column, matrix.select(1, 2), ReduceOp::sum).wait();
    EXPECT_TRUE(column.eq(2).all().item<bool>());
  });
}

// Kernels would interpret all tensors with the dtype of the first.
TEST(RefusedCalls, ReducedListsOfSeveralDtypes) {
  run_local(2, [](Communicator world) {
    const auto list = [](std::initializer_list<at::ScalarType> dtypes) {
      std::vector<at::Tensor> tensors;
      for (const auto dtype : dtypes) tensors.push_back(at::ones({4}, dtype));
      return tensors;
    };
    const auto f = at::kFloat, d = at::kDouble, i = at::kInt;
    const auto scatter = [&](const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs) {
      world.reduce_scatter_list(outputs, inputs, ReduceOp::sum).wait();
    };
    expect_rejected("of one dtype, got Float and Double", [&] { scatter(list({f, d}), list({f, d, f, d})); });
    expect_rejected("of one dtype, got Double and Float", [&] { scatter(list({d, f}), list({d, f, d, f})); });
    expect_rejected("of one dtype, got Float and Int", [&] { scatter(list({f, f}), list({f, f, f, i})); });
    expect_rejected("of one dtype, got Float and Double", [&] {
      world.all_reduce_list(list({f, d}), ReduceOp::sum).wait();
    });
    const auto sums = list({d, d});
    scatter(sums, list({d, d, d, d}));
    for (const at::Tensor& sum : sums) EXPECT_TRUE(sum.eq(2).all().item<bool>());
  });
}

// Ranges [begin, end) of one buffer.
using Range = std::pair<std::int64_t, std::int64_t>;

bool overlap(const Range& a, const Range& b) { return std::max(a.first, b.first) < std::min(a.second, b.second); }

// An output may overlap no other output and no input, except that it may equal its own input.
bool may_gather(const std::vector<Range>& outputs, const std::vector<Range>& inputs, std::size_t own) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (overlap(outputs[i], outputs[k])) return false;
    }
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (i == own + k && outputs[i] == inputs[k]) continue;
      if (overlap(outputs[i], inputs[k])) return false;
    }
  }
  return true;
}

// Compares with a check of each pair of ranges.
TEST(RefusedCalls, AnyRangesOfOneBuffer) {
  int gathered = 0, refused = 0;
  EXPECT_TRUE(rc::check([&] {
    constexpr std::int64_t kSize = 40;
    std::vector<Range> inputs, outputs;
    const auto of_length = [](std::int64_t length) {
      const auto begin = *rc::gen::inRange<std::int64_t>(0, kSize - length + 1);
      return Range(begin, begin + length);
    };
    const auto count = *rc::gen::inRange<std::size_t>(1, 4);
    const auto lengths = *rc::gen::container<std::vector<std::int64_t>>(count, rc::gen::inRange<std::int64_t>(0, 7));
    for (const auto length : lengths) inputs.push_back(of_length(length));
    for (const int rank : {0, 1}) {
      const bool in_place = *rc::gen::arbitrary<bool>();
      for (std::size_t k = 0; k < lengths.size(); ++k) {
        outputs.push_back(rank == 0 && in_place ? inputs[k] : of_length(lengths[k]));
      }
    }
    // Each rank has the same inputs, and the outputs that may be in place are its own part. Both ranks refuse, or
    // neither.
    std::vector<char> ran(2, 0), may(2, 0);
    run_local(2, [&](Communicator world) {
      const auto me = static_cast<std::size_t>(world.rank());
      auto mine = outputs;
      if (me == 1) std::rotate(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(inputs.size()), mine.end());
      const at::Tensor buffer = at::ones({kSize});
      const auto part = [&](const Range& s) { return buffer.narrow(0, s.first, s.second - s.first); };
      std::vector<at::Tensor> in, out;
      for (const auto& s : inputs) in.push_back(part(s));
      for (const auto& s : mine) out.push_back(part(s));
      may[me] = may_gather(mine, inputs, me * inputs.size());
      try {
        world.all_gather_list(out, in).wait();
        ran[me] = 1;
      } catch (const c10::Error&) {
      }
    });
    RC_ASSERT(ran == may);
    ++(ran[0] != 0 ? gathered : refused);
  }));
  if (gathered + refused < 50) return;  // RC_PARAMS may set too few cases for the ratio below
  EXPECT_GT(10 * gathered, refused);
  EXPECT_GT(10 * refused, gathered);
}

TEST(RefusedCalls, DisjointOutputsOfOneTensorAreAccepted) {
  run_local(2, [](Communicator world) {
    const at::Tensor both = at::zeros({4, 4}), none = at::zeros({0}), mine = at::full({4}, 1.0 + world.rank());
    world.all_gather({both.select(1, 0), both.select(1, 1)}, mine).wait();
    world.all_gather({both.select(0, 2), both.select(0, 3)}, mine).wait();
    world.all_gather({none, none}, at::zeros({0})).wait();
    EXPECT_TRUE(at::equal(
        both, at::tensor({1., 2., 0., 0., 1., 2., 0., 0., 1., 1., 1., 1., 2., 2., 2., 2.}, at::kFloat).view({4, 4})));
  });
}

TEST(RefusedCalls, UndefinedCommunicatorIsRefused) {
  run_local(2, [](Communicator world) {
    const Communicator none = world.split(-1, 0);
    EXPECT_FALSE(none);
    expect_rejected("expected a communicator, got an empty one", [&] { (void)none.rank(); });
    expect_rejected("expected a communicator, got an empty one", [&] { none.barrier(); });
    expect_rejected("expected a communicator, got an empty one",
                    [&] { none.all_reduce(at::ones({2}), ReduceOp::sum); });
    expect_rejected("expected a communicator, got an empty one", [&] { none.abort("of no use"); });
    EXPECT_EQ(none.label(), "");
  });
}

}  // namespace
}  // namespace dtensor::test
