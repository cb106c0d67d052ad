// Invalid send lists give one error, the same on every rank; so do exchanges that do not match.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "cases.h"
#include "support/errors.h"

namespace dtensor::test::halo {
namespace {

using Lists = std::vector<at::Tensor>;

// Runs `body` on ranks and returns the distinct errors.
std::set<std::string> errors_on(int ranks, const std::function<void(const Communicator&)>& body) {
  std::mutex mutex;
  std::set<std::string> errors;
  run_local(ranks, [&](Communicator world) {
    auto error = error_of([&] { body(world); });
    world.barrier();  // the ranks can continue
    const std::lock_guard lock(mutex);
    errors.insert(std::move(error));
  });
  return errors;
}

// Rank 1 of `ranks` passes `owned`, `lists` and `expected`; the others pass valid arguments.
void expect_error(int ranks, std::int64_t owned, const Lists& lists, const Rows& expected, const std::string& text) {
  const auto errors = errors_on(ranks, [&](const Communicator& world) {
    const Lists none(world.size(), at::empty({0}, at::kLong));
    const bool wrong = world.rank() == 1;
    const GraphHalo halo(world, wrong ? owned : 2, wrong ? lists : none,
                         wrong ? Rows(expected) : Rows(world.size(), 0));
  });
  ASSERT_EQ(errors.size(), 1U) << text;
  EXPECT_EQ(*errors.begin(), "GraphHalo: rank 1: " + text);
}

TEST(InvalidGraphHalo, OneErrorOnEveryRank) {
  const auto none = at::empty({0}, at::kLong);
  for (const int ranks : {2, 3, 4}) {
    const auto with = [&](const at::Tensor& list) {
      Lists lists(ranks, none);
      lists[0] = list;
      return lists;
    };
    const auto all = std::to_string(ranks);
    expect_error(
        ranks, 3, with(at::tensor({0, 2, 3}, at::kLong)), {},
        "the send list for rank 0: expected rows in [0, 3), the rows that this rank owns, got 3 at position 2");
    expect_error(
        ranks, 3, with(at::tensor({0, -1}, at::kInt)), {},
        "the send list for rank 0: expected rows in [0, 3), the rows that this rank owns, got -1 at position 1");
    expect_error(
        ranks, 0, with(at::tensor({0}, at::kLong)), {},
        "the send list for rank 0: expected rows in [0, 0), the rows that this rank owns, got 0 at position 0");
    expect_error(ranks, 3, with(at::zeros({1})), {},
                 "the send list for rank 0: expected int32 or int64 row numbers of shape [n], got Float [1]");
    expect_error(ranks, 3, with(at::zeros({1, 1}, at::kLong)), {},
                 "the send list for rank 0: expected int32 or int64 row numbers of shape [n], got Long [1, 1]");
    expect_error(ranks, 3, with({}), {},
                 "the send list for rank 0: expected a regular tensor, got an undefined tensor");
    expect_error(ranks, -1, with(none), {}, "expected a number of owned rows of at least 0, got -1");
    expect_error(
        ranks, 3, {none}, {},
        "expected one send list for each of " + all + " ranks, got 1; pass empty lists for ranks that receive nothing");
    expect_error(ranks, 3, with(none), {1}, "expected receive counts for each of " + all + " ranks (or none), got 1");
  }
}

// Rank 0 sends 2 rows to rank 1, which expects 3.
TEST(InvalidGraphHalo, SendListsThatDoNotMatchTheExpectedCounts) {
  for (const int ranks : {2, 3, 4}) {
    const auto errors = errors_on(ranks, [&](const Communicator& world) {
      Lists lists(ranks, at::empty({0}, at::kLong));
      Rows expected(ranks, 0);
      if (world.rank() == 0) lists[1] = at::tensor({1, 0}, at::kLong);
      if (world.rank() == 1) expected[0] = 3;
      const GraphHalo halo(world, 2, lists, expected);
    });
    EXPECT_EQ(errors, std::set<std::string>{"GraphHalo: rank 1: expected 3 rows from rank 0, but its send list for "
                                            "this rank has 2"});
  }
}

TEST(InvalidGraphHalo, ErrorsOfSeveralRanksAreListed) {
  const auto errors = errors_on(3, [&](const Communicator& world) {
    const GraphHalo halo(world, world.rank() - 1, Lists(3, at::tensor({world.rank()}, at::kLong)));
  });
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(*errors.begin(),
            "GraphHalo: rank 0: expected a number of owned rows of at least 0, got -1; rank 1: the send list for rank "
            "0: expected rows in [0, 0), the rows that this rank owns, got 1 at position 0; rank 2: the send list for "
            "rank 0: expected rows in [0, 1), the rows that this rank owns, got 2 at position 0");
}

TEST(InvalidGraphHalo, RowsThatDoNotFit) {
  run_local(2, [](Communicator world) {
    const auto one = at::tensor({1}, at::kLong);
    const GraphHalo halo(world, 2, {one, one});
    EXPECT_EQ(error_of([&] {
                halo.exchange(at::zeros({3, 5}));
              }),
              "GraphHalo::exchange: expected 2 rows (the owned ones) in dimension 0, got a tensor of shape [3, 5]");
    EXPECT_EQ(error_of([&] { halo.exchange(at::zeros({})); }),
              "GraphHalo::exchange: expected 2 rows (the owned ones) in dimension 0, got a tensor of shape []");
    EXPECT_EQ(error_of([&] {
                halo.reduce(at::zeros({2, 5}));
              }),
              "GraphHalo::reduce: expected 4 rows (owned and ghosts) in dimension 0, got a tensor of shape [2, 5]");
    EXPECT_EQ(error_of([&] { halo.reduce({}); }),
              "GraphHalo::reduce: expected a regular tensor, got an undefined tensor");
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    const auto sharded = distribute_tensor(at::zeros({2, 5}), mesh, {Replicate()});
    EXPECT_EQ(error_of([&] { halo.exchange(sharded); }),
              "GraphHalo::exchange: expected a regular tensor, got a DTensor; pass its to_local()");
  });
}

// Rows of other sizes or dtypes on one rank: the collective compares them.
TEST(InvalidGraphHalo, RowsThatDifferBetweenRanksAreAnErrorOnEveryRank) {
  for (const bool dtype : {true, false}) {
    int failed = 0;
    std::mutex mutex;
    const auto body = [&](Communicator world) {
      const auto one = at::tensor({1}, at::kLong);
      const GraphHalo halo(world, 2, Lists(3, one));
      const bool differs = world.rank() == 2;
      try {
        halo.exchange(at::zeros({2, differs && !dtype ? 4 : 5}, differs && dtype ? at::kDouble : at::kFloat));
      } catch (const CommError& error) {
        const std::lock_guard lock(mutex);
        ++failed;
        EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
      }
    };
    run_local(3, body);
    EXPECT_EQ(failed, 3);
  }
}

struct Calls {
  std::function<void()> wrong, valid;
};

// Rank 1 makes the wrong call, catches its error and goes on with valid ones, which the other ranks make from the
// beginning. Its first valid call must not complete theirs.
void expect_error_of_one_rank_everywhere(const std::function<Calls(const Communicator&)>& make,
                                         const std::string& text) {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_local(3, [&](const Communicator& world) {
    const Calls calls = make(world);
    if (world.rank() == 1) {
      EXPECT_NE(error_of(calls.wrong).find(text), std::string::npos);
    }
    std::string error;
    try {
      calls.valid();
    } catch (const CommError& e) {
      error = e.what();
    }
    const std::lock_guard lock(mutex);
    errors.push_back(error);
  });
  for (const auto& error : errors) EXPECT_NE(error.find("rank 1 failed: " + text), std::string::npos) << error;
}

TEST(InvalidGraphHalo, ARankThatGoesOnAfterItsErrorIsAnErrorOnEveryRank) {
  const auto make = [](const Communicator& world) { return GraphHalo(world, 2, Lists(3, at::tensor({1}, at::kLong))); };
  expect_error_of_one_rank_everywhere(
      [&](const Communicator& world) -> Calls {
        const auto halo = make(world);
        return {[=] { halo.exchange(at::ones({3, 2})); }, [=] { halo.exchange(at::ones({2, 2})); }};
      },
      "GraphHalo::exchange: expected 2 rows");
  expect_error_of_one_rank_everywhere(
      [&](const Communicator& world) -> Calls {
        const auto halo = make(world);
        return {[=] { halo.reduce(at::ones({2, 2})); }, [=] { halo.reduce(at::ones({5, 2})); }};
      },
      "GraphHalo::reduce: expected 5 rows");
  expect_error_of_one_rank_everywhere(
      [&](const Communicator& world) -> Calls {
        const auto halo = make(world);
        return {[=] {
                  halo.exchange(at::ones({2, 2}, at::device(at::kMeta)));
                },
                [=] {
                  halo.exchange(at::ones({2, 2}));
                }};
      },
      "");
}

// The dimensions of a grid are exchanged one after another, by different ranks.
TEST(InvalidGridHalo, ARankThatGoesOnAfterItsErrorIsAnErrorOnEveryRank) {
  for (const bool update : {false, true}) {
    const auto make = [update](const Communicator& world) -> Calls {
      const auto mesh = init_device_mesh(world, at::kCPU, {3, 1});
      const GridHalo halo(mesh, {Shard(0), Shard(1)}, {6, 4}, {{0, 1, 1}, {1, 1, 1, Boundary::periodic}});
      if (update) return {[=] { halo.update(at::ones({4, 7})); }, [=] { halo.update(at::ones({4, 6})); }};
      return {[=] { halo.exchange(at::ones({2, 5})); }, [=] { halo.exchange(at::ones({2, 4})); }};
    };
    expect_error_of_one_rank_everywhere(make,
                                        update ? "GridHalo::interior: expected 6" : "GridHalo::exchange: expected 4");
  }
}

// If the loss of a rank does not use the exchange, the error of the others names the cause.
TEST(InvalidGraphHalo, UnusedExchangeIsAnErrorWithReason) {
  run_local(2, [](Communicator world) {
    const auto one = at::tensor({1}, at::kLong);
    const GraphHalo halo(world, 2, {one, one});
    std::string error;
    try {
      const auto x = at::ones({2, 3}).requires_grad_();
      const auto y = halo.exchange(x);
      (world.rank() == 0 ? y : x).sum().backward();
      world.barrier();
    } catch (const CommError& e) {
      error = e.what();
    }
    EXPECT_NE(error.find("ranks disagree"), std::string::npos) << error;
    if (world.rank() > 0) return;
    EXPECT_NE(error.find("the loss of each rank must depend on what GraphHalo::exchange returned"), std::string::npos)
        << error;
  });
}

}  // namespace
}  // namespace dtensor::test::halo
