// Requirements for every backend: every collective, dtype, uneven and empty sizes, views of any strides. Expected
// values come from a loop over regular tensors.
#include <limits>

#include "comm/fixture.h"

namespace dtensor::test {
namespace {

const std::vector<at::ScalarType> kMovable = {
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,     at::kBool,          at::kByte,         at::kChar,
    at::kShort, at::kInt,    at::kLong, at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn};

std::int64_t piece(std::int64_t rank, std::int64_t seed) { return (rank * 5 + seed) % 4; }  // uneven, some empty

std::vector<std::int64_t> ranks_of(const Communicator& c) { return c.ranks(); }

class Conformance : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
};

TEST_P(Conformance, RankAndSizeAreConsistent) {
  on_ranks(ranks(), [&](Communicator world) {
    EXPECT_GE(world.rank(), 0);
    EXPECT_LT(world.rank(), world.size());
    EXPECT_EQ(ranks_of(world).at(world.rank()), world.rank());
    world.barrier();
  });
}

TEST_P(Conformance, AllGatherMovesEveryDtypeUnevenAndStrided) {
  on_ranks(ranks(), [&](Communicator world) {
    for (auto dtype : kMovable) {
      for (int kind = 0; kind < kStridedKinds; ++kind) {
        std::vector<at::Tensor> outputs, expected;
        for (int i = 0; i < world.size(); ++i) {
          expected.push_back(sample({piece(i, kind), 3, 2}, at::kInt, i).to(dtype));
          outputs.push_back(strided_like(at::zeros_like(expected.back(), at::kFloat).to(dtype), (kind + i) % 4));
        }
        world.all_gather(outputs, strided_like(expected[world.rank()], kind)).wait();
        for (int i = 0; i < world.size(); ++i) {
          EXPECT_TRUE(at::equal(outputs[i].to(at::kComplexDouble), expected[i].to(at::kComplexDouble)))
              << dtype << kind;
        }
      }
    }
  });
}

TEST_P(Conformance, AllToAllMovesUnevenPieces) {
  on_ranks(ranks(), [&](Communicator world) {
    const int me = world.rank();
    for (auto dtype : kMovable) {
      std::vector<at::Tensor> inputs, outputs, expected;
      for (int i = 0; i < world.size(); ++i) {
        inputs.push_back(
            strided_like(sample({2, piece(me + 2 * i, 1)}, at::kInt, me * 10 + i).to(dtype), (me + i) % 4));
        expected.push_back(sample({2, piece(i + 2 * me, 1)}, at::kInt, i * 10 + me).to(dtype));
        outputs.push_back(strided_like(at::zeros(expected.back().sizes(), at::kFloat).to(dtype), i % 4));
      }
      world.all_to_all(outputs, inputs).wait();
      for (int i = 0; i < world.size(); ++i) {
        EXPECT_TRUE(at::equal(outputs[i].to(at::kComplexDouble), expected[i].to(at::kComplexDouble))) << dtype;
      }
    }
  });
}

// docs/reproduced_experiments.md, row "uneven all-to-all".
TEST_P(Conformance, UnevenAllToAllOfTwoRanks) {
  on_ranks(ranks(), [&](Communicator world) {
    if (world.rank() >= 2 || world.size() < 2) return;
    const auto pair = world.subgroup({0, 1});
    const bool first = world.rank() == 0;
    const at::Tensor held = first ? at::arange(0, 5, at::kLong) : at::arange(10, 16, at::kLong);
    const auto inputs = held.split_with_sizes(first ? at::IntArrayRef{2, 3} : at::IntArrayRef{3, 3});
    const at::Tensor result = at::empty({first ? 5 : 6}, at::kLong);
    const auto outputs = result.split_with_sizes(first ? at::IntArrayRef{2, 3} : at::IntArrayRef{3, 3});
    pair.all_to_all(outputs, inputs).wait();
    const std::vector<std::int64_t> expected =
        first ? std::vector<std::int64_t>{0, 1, 10, 11, 12} : std::vector<std::int64_t>{2, 3, 4, 13, 14, 15};
    EXPECT_EQ(
        std::vector<std::int64_t>(result.data_ptr<std::int64_t>(), result.data_ptr<std::int64_t>() + result.numel()),
        expected);
  });
}

// Reduces a list in rank order with the semantics of its dtype; half types accumulate in float.
at::Tensor reduced(const std::vector<at::Tensor>& parts, ReduceOp op) {
  const auto dtype = parts[0].scalar_type();
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  auto wide = [&](const at::Tensor& t) { return half ? t.to(at::kFloat) : t; };
  at::Tensor acc = wide(parts[0]).clone();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const at::Tensor next = wide(parts[i]);
    if (op == ReduceOp::max) acc = at::maximum(acc, next);
    if (op == ReduceOp::min) acc = at::minimum(acc, next);
    if (op == ReduceOp::product) acc = dtype == at::kBool ? at::logical_and(acc, next) : acc * next;
    if (op == ReduceOp::sum || op == ReduceOp::avg) acc = dtype == at::kBool ? at::logical_or(acc, next) : acc + next;
  }
  if (op == ReduceOp::avg) acc = acc / static_cast<double>(parts.size());
  return acc.to(dtype);
}

const std::vector<at::ScalarType> kReducible = {at::kFloat, at::kDouble, at::kHalf,         at::kBFloat16,
                                                at::kBool,  at::kByte,   at::kChar,         at::kShort,
                                                at::kInt,   at::kLong,   at::kComplexFloat, at::kComplexDouble};
const std::vector<ReduceOp> kOps = {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min, ReduceOp::product};

bool is_supported(ReduceOp op, at::ScalarType dtype) {
  if (op == ReduceOp::avg) return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
  return c10::isComplexType(dtype) ? op == ReduceOp::sum || op == ReduceOp::product : true;
}

// Values that are inexact in the dtype, to detect a wrong order or precision.
at::Tensor rough(at::IntArrayRef sizes, at::ScalarType dtype, std::int64_t seed) {
  const at::Tensor base = sample(sizes, at::kDouble, seed) - 3;
  if (dtype == at::kBool) return base.gt(0);
  if (c10::isFloatingType(dtype) || c10::isComplexType(dtype)) return (base / 3 + 0.1 * seed).to(dtype);
  return base.to(dtype);
}

// Wraps as in ATen, without undefined overflow, also for types shorter than int.
template <class T>
void expect_wrapping(const Communicator& world) {
  const auto dtype = c10::CppTypeToScalarType<T>::value;
  const auto value = [](int rank) { return static_cast<T>(std::numeric_limits<T>::max() - 2 * rank); };
  std::uint64_t sum = 0, product = 1;
  for (int rank = 0; rank < world.size(); ++rank) {
    sum += static_cast<std::uint64_t>(value(rank));
    product *= static_cast<std::uint64_t>(value(rank));
  }
  for (const auto& [op, expected] : {std::pair{ReduceOp::sum, sum}, std::pair{ReduceOp::product, product}}) {
    const at::Tensor mine = at::full({65}, value(world.rank()), dtype);
    world.all_reduce(mine, op).wait();
    EXPECT_TRUE(at::equal(mine, at::full({65}, static_cast<T>(expected), dtype))) << dtype << mine;
  }
}

TEST_P(Conformance, SumsAndProductsOfIntegersWrap) {
  on_ranks(ranks(), [](Communicator world) {
    expect_wrapping<std::int64_t>(world);
    expect_wrapping<std::int32_t>(world);
    expect_wrapping<std::int16_t>(world);
    expect_wrapping<std::int8_t>(world);
    expect_wrapping<std::uint8_t>(world);
  });
}

TEST_P(Conformance, AllReduceGivesTheSameBitsOnEveryRank) {
  on_ranks(ranks(), [&](Communicator world) {
    for (auto dtype : kReducible) {
      for (auto op : kOps) {
        if (!is_supported(op, dtype)) continue;
        for (std::int64_t rows : {0, 1, 67}) {
          std::vector<at::Tensor> parts;
          for (int i = 0; i < world.size(); ++i) parts.push_back(rough({rows, 5}, dtype, i));
          const at::Tensor mine = strided_like(parts[world.rank()], static_cast<int>(rows + world.rank()) % 4);
          world.all_reduce(mine, op).wait();
          EXPECT_TRUE(same(mine, reduced(parts, op))) << dtype << ' ' << static_cast<int>(op) << ' ' << rows;
        }
      }
    }
  });
}

TEST_P(Conformance, OutOfPlaceAllReduceKeepsItsInput) {
  on_ranks(ranks(), [&](Communicator world) {
    for (auto dtype : kReducible) {
      for (std::int64_t rows : {0, 1, 67, 4000}) {
        std::vector<at::Tensor> parts;
        for (int i = 0; i < world.size(); ++i) parts.push_back(rough({rows, 5}, dtype, i));
        const at::Tensor input = strided_like(parts[world.rank()], (world.rank() + 1) % 4);
        const at::Tensor output = strided_like(at::zeros_like(input), world.rank() % 4);
        world.all_reduce(output, input, ReduceOp::sum).wait();
        EXPECT_TRUE(same(output, reduced(parts, ReduceOp::sum))) << dtype << ' ' << rows;
        EXPECT_TRUE(same(input, parts[world.rank()])) << dtype << ' ' << rows;
      }
    }
  });
}

// The size covers every path: streaming stores, shares, several messages.
TEST_P(Conformance, LargeTensorsAreReducedAndGathered) {
  on_ranks(ranks(), [&](Communicator world) {
    const int n = world.size();
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      std::vector<at::Tensor> parts, inputs, outputs;
      for (int i = 0; i < n; ++i) parts.push_back(rough({1501, 1003}, dtype, i));
      const at::Tensor& mine = parts[world.rank()];
      const at::Tensor sum = mine.clone(), columns = at::empty({1501, 1003 * n}, mine.options());
      world.all_reduce(sum, ReduceOp::sum).wait();
      EXPECT_TRUE(same(sum, reduced(parts, ReduceOp::sum))) << dtype;
      world.all_gather(columns.chunk(n, 1), mine).wait();
      EXPECT_TRUE(same(columns, at::cat(parts, 1))) << dtype;
      const auto pieces = mine.tensor_split(n, 1);
      std::vector<at::Tensor> of_mine;
      for (const auto& part : parts) of_mine.push_back(part.tensor_split(n, 1)[world.rank()]);
      const at::Tensor scattered = at::empty(pieces[world.rank()].sizes(), mine.options());
      world.reduce_scatter(scattered, pieces, ReduceOp::avg).wait();
      EXPECT_TRUE(same(scattered, reduced(of_mine, ReduceOp::avg))) << dtype;
    }
  });
}

TEST_P(Conformance, ReduceScatterWithUnevenPieces) {
  on_ranks(ranks(), [&](Communicator world) {
    const int me = world.rank(), n = world.size();
    for (auto dtype : kReducible) {
      for (auto op : kOps) {
        if (!is_supported(op, dtype)) continue;
        std::vector<at::Tensor> inputs, mine;
        for (int to = 0; to < n; ++to) {
          inputs.push_back(strided_like(rough({piece(to, 1), 3, 2}, dtype, me * 7 + to), (me + to) % 4));
          mine.push_back(rough({piece(me, 1), 3, 2}, dtype, to * 7 + me));
        }
        const at::Tensor output = strided_like(at::zeros_like(mine[0]), me % 4);
        world.reduce_scatter(output, inputs, op).wait();
        EXPECT_TRUE(same(output, reduced(mine, op))) << dtype << ' ' << static_cast<int>(op);
      }
    }
  });
}

TEST_P(Conformance, MaxAndMinPropagateNaN) {
  on_ranks(ranks(), [&](Communicator world) {
    for (auto op : {ReduceOp::max, ReduceOp::min}) {
      for (int bad = 0; bad < world.size(); ++bad) {
        at::Tensor x = at::full({3}, static_cast<double>(world.rank()), at::kFloat);
        if (world.rank() == bad) x.fill_(NAN);
        world.all_reduce(x, op).wait();
        EXPECT_TRUE(x.isnan().all().item<bool>());
      }
    }
  });
}

TEST_P(Conformance, BroadcastFromEveryRoot) {
  on_ranks(ranks(), [&](Communicator world) {
    for (int root = 0; root < world.size(); ++root) {
      for (int kind = 0; kind < kStridedKinds; ++kind) {
        const at::Tensor expected = sample({3, 4}, at::kFloat, root + 1);
        const at::Tensor x =
            strided_like(world.rank() == root ? expected : at::zeros({3, 4}), (kind + world.rank()) % 4);
        world.broadcast(x, root).wait();
        EXPECT_TRUE(same(x, expected));
      }
    }
  });
}

TEST_P(Conformance, RingOfMessages) {
  on_ranks(ranks(), [&](Communicator world) {
    const int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
    if (n == 1) return;
    for (int round = 0; round < 3; ++round) {
      const at::Tensor give = strided_like(sample({4, 3}, at::kFloat, world.rank() + round), round);
      const at::Tensor take = strided_like(at::zeros({4, 3}), round + 1);
      Work sent = world.send(give, next, round);
      world.recv(take, previous, round).wait();
      sent.wait();
      EXPECT_TRUE(same(take, sample({4, 3}, at::kFloat, previous + round)));
    }
  });
}

TEST_P(Conformance, ReceivesBeforeSendsDoNotDeadlock) {
  on_ranks(ranks(), [&](Communicator world) {
    const int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
    if (n == 1) return;
    const at::Tensor take = at::zeros({2});
    Work taken = world.recv(take, previous);
    world.send(at::full({2}, static_cast<double>(world.rank())), next).wait();
    taken.wait();
    EXPECT_EQ(take[1].item<double>(), previous);
  });
}

TEST_P(Conformance, ConjugateAndNegativeViewsAreRead) {
  on_ranks(ranks(), [&](Communicator world) {
    const at::Tensor z = at::complex(at::arange(4, at::kFloat), at::arange(4, at::kFloat) + world.rank());
    std::vector<at::Tensor> outputs(world.size());
    for (auto& o : outputs) o = at::zeros({4}, at::kComplexFloat);
    world.all_gather(outputs, z.conj()).wait();
    for (int i = 0; i < world.size(); ++i) {
      EXPECT_TRUE(at::equal(at::imag(outputs[i]), -(at::arange(4, at::kFloat) + i)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Conformance, ::testing::Values(1, 2, 3, 4), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace dtensor::test
