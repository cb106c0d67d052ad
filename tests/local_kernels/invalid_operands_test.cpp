// Invalid operands, found by tools/fuzz: one error on every rank, or the behavior of one device.
#include "local_kernels/same_error.h"

namespace dtensor::test {
namespace {

// Kernels without a meta kernel, whose local parts are valid on some ranks.
TEST(Mistakes, FullCallIsValidated) {
  const auto norm = [](const DeviceMesh& m, std::int64_t channels, at::ScalarType type) {
    const auto x = [&] { return split(m, {2, 6, 3}); };
    at::native_group_norm_backward(x(), x(), split(m, {2, 2}), split(m, {2, 2}, type), split(m, {channels}), 2, 6, 3, 2,
                                   {true, true, true});
  };
  expect_same_error([&](const DeviceMesh& m) { norm(m, 7, at::kFloat); }, "gamma.numel() == C");
  expect_same_error([&](const DeviceMesh& m) { norm(m, 6, at::kHalf); }, "expected scalar type Float but found Half");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::convolution_backward(split(m, {1, 3, 4, 6}), split(m, {1, 3, 4, 4}), split(m, {3, 3, 3, 3}),
                                 at::IntArrayRef{3}, {2, 2}, {2, 2}, {1, 1}, true, {1, 1}, 1, {true, true, true});
      },
      "whose result has sizes [1, 3, 6, 6]");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::upsample_nearest1d_backward(split(m, {2, 3, 5}, at::kByte), {5}, {2, 3, 4});
      },
      "not implemented for 'Byte'");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::fractional_max_pool2d_backward(split(m, {1, 3, 2, 2}), split(m, {1, 3, 9, 9}), {3, 3}, {2, 2},
                                           split(m, {1, 3, 2, 2}));
      },
      "expected scalar type Long but found Float");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::grid_sampler_2d(split(m, {2, 3, 5, 20}), split(m, {1, 2, 2}), 0, 1, false);
      },
      "grid_sampler(): expected");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::Tensor out = split(m, {0});
        at::linalg_householder_product_out(out, split(m, {2, 1, 5, 5}), split(m, {1, 1, 5}));
      },
      "batch dimensions of tau");
  expect_same_error(
      [](const DeviceMesh& m) {
        const at::Tensor index = distribute_tensor(at::ones({1}, at::kLong), m, {Replicate()});
        at::index_put(split(m, {5, 5, 5}), {index}, split(m, {2, 5, 5}), /*accumulate=*/true);
      },
      "cannot be broadcast to indexing result of shape [1, 5, 5]");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::Tensor out = split(m, {0});
        at::grid_sampler_2d_out(out, split(m, {1, 3, 5, 20}), split(m, {2, 13, 10, 2}), 0, 0, false);
      },
      "grid_sampler(): expected grid and input to have same batch size");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::_foreach_powsum({split(m, {4, 3}, at::kBool), split(m, {8})}, 2);
      },
      "not implemented for 'Long'");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::fractional_max_pool3d_backward(split(m, {2, 3, 2, 3, 2}), split(m, {2, 1, 5, 5, 5}), {2, 2, 2}, {2, 3, 2},
                                           split(m, {2, 3, 2, 3, 2}, at::kLong));
      },
      "does not belong to an input of sizes [2, 1, 5, 5, 5]");
}

// Kernels of the library accept the dtypes that the operator accepts.
TEST(Mistakes, LocalKernelsRefuseDtypesThatAtenRefuses) {
  expect_same_error(
      [](const DeviceMesh& m) {
        at::Tensor out = split(m, {5});
        at::norm_out(out, split(m, {5, 10}, at::kHalf), 2, at::IntArrayRef{1});
      },
      "dtype");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::Tensor out = split(m, {4});
        at::_log_softmax_backward_data_out(out, split(m, {4}), split(m, {4}, at::kHalf), 0, at::kFloat);
      },
      "expected scalar type");
  expect_same_error(
      [](const DeviceMesh& m) {
        const auto row = [&](at::ScalarType type) { return split(m, {6, 1, 1}, type); };
        at::native_layer_norm_backward(split(m, {6, 2, 3}), split(m, {6, 2, 3}, at::kFloat, 2), {2, 3}, row(at::kFloat),
                                       row(at::kByte), split(m, {2, 3}, at::kFloat, 1), split(m, {2, 3}, at::kFloat, 1),
                                       {true, true, true});
      },
      "expected scalar type Float but found Byte");
}

// The ATen kernels would read out of bounds, or uninitialized memory.
TEST(Mistakes, MismatchedStatisticsAreRefused) {
  expect_same_error(
      [](const DeviceMesh& m) {
        const auto x = [&] { return split(m, {3, 3}, at::kFloat, 1); };
        at::native_layer_norm_backward(x(), x(), {3, 3}, x(), x(), x(), x(), {true, true, true});
      },
      "`mean` of sizes [3, 3] does not belong");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::_native_batch_norm_legit(split(m, {3, 3, 3}), {}, {}, false, 0.5, 0.5);
      },
      "expected running_mean and running_var in evaluation");
}

// A rank with one of several elements must not squeeze the dimension, and the result is a copy, not a view.
TEST(Mistakes, SqueezeCopyReturnsACopy) {
  const at::Tensor x = at::arange(12, at::kDouble).reshape({3, 1, 4});
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    const at::Tensor placed = distribute_tensor(x, mesh, {Shard(0)});
    at::Tensor out = distribute_tensor(at::empty({1, 1}, at::kDouble), mesh, {Replicate()});
    expect_close(at::squeeze_copy_out(out, placed), x.squeeze(), "out=");
    at::squeeze_copy(placed).zero_();
    expect_close(placed, x, "the source");
  });
}

TEST(Mistakes, MismatchedOutTensorsAndGradientsAreRefused) {
  expect_same_error(
      [](const DeviceMesh& m) {
        at::Tensor out = split(m, {3, 3}), mask = split(m, {3, 3});
        at::native_dropout_out(out, mask, split(m, {3, 3}), 0.5, true);
      },
      "dtype");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::_adaptive_avg_pool3d_backward(split(m, {3, 3, 3, 3, 3, 3}), split(m, {3, 3, 3, 3, 3, 3}));
      },
      "at most a batch and a channel dimension");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::fractional_max_pool3d_backward(split(m, {2, 3, 2, 3, 2}), split(m, {2, 3, 5, 5, 5}), {2, 2, 2}, {2, 3, 2},
                                           split(m, {0, 3, 2, 3, 2}, at::kLong));
      },
      "indices of sizes [0, 3, 2, 3, 2]");
}

// An operand broadcasts with the full tensor, but not with its parts.
TEST(Mistakes, BroadcastBufferUsesTheFullTensor) {
  const at::Tensor x = at::arange(9, at::kDouble).reshape({3, 3}), buffer = at::arange(3, at::kDouble);
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto place = [&](const at::Tensor& t, std::int64_t dim) {
      return at::Tensor(distribute_tensor(t, mesh, {Shard(dim)}));
    };
    expect_close(at::log_sigmoid_backward(place(x, 1), place(x, 1), place(buffer, 0)),
                 at::log_sigmoid_backward(x, x, buffer), "log_sigmoid_backward");
  });
}

TEST(Mistakes, AddbmmResizesAOneElementTensor) {
  const at::Tensor a = at::arange(125, at::kDouble).reshape({5, 5, 5}), b = at::ones({5, 5, 2}, at::kDouble);
  for (const Placement from : {Placement(Partial()), Placement(Shard(0)), Placement(Replicate())}) {
    on_mesh({3}, [&](const DeviceMesh& mesh) {
      at::Tensor sum = distribute_tensor(at::ones({1}, at::kDouble), mesh, {from});
      sum.addbmm_(distribute_tensor(a, mesh, {Shard(0)}), distribute_tensor(b, mesh, {Shard(0)}));
      expect_close(sum, at::ones({1}, at::kDouble).addbmm_(a, b), to_string(Placements{from}));
    });
  }
}

TEST(Mistakes, HuberLossHasTheDtypeOfItsInput) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor loss = at::huber_loss(split(mesh, {4, 3}, at::kHalf), split(mesh, {4, 3}), at::Reduction::None);
    EXPECT_EQ(loss.scalar_type(), at::kHalf);
    EXPECT_EQ(DTensor(loss).to_local().scalar_type(), at::kHalf);
  });
}

// These kernels read at positions given by sizes or values of other operands.
TEST(Mistakes, GradientsDoNotReadOutOfBounds) {
  expect_same_error(
      [](const DeviceMesh& m) {
        const auto row = [&] { return split(m, {3, 1, 1}); };
        at::native_layer_norm_backward(split(m, {0, 2, 3}), split(m, {3, 2, 3}), {2, 3}, row(), row(), split(m, {2, 3}),
                                       split(m, {2, 3}), {true, true, true});
      },
      "upstream gradient of sizes [0, 2, 3]");
  const auto attention = [](const DeviceMesh& m, const Shape& grad, const Shape& rows) {
    const auto x = [&] { return split(m, {3, 4, 2, 8}); };
    at::_scaled_dot_product_flash_attention_for_cpu_backward(split(m, grad), x(), x(), x(), x(), split(m, rows), 0,
                                                             false);
  };
  expect_same_error(
      [&](const DeviceMesh& m) {
        attention(m, {3, 4, 2, 8}, {3, 0, 2});
      },
      "`logsumexp` of sizes [3, 0, 2]");
  expect_same_error([&](const DeviceMesh& m) { attention(m, {3, 0, 8}, {3, 4, 2}); }, "`grad_out` of sizes [3, 0, 8]");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::_segment_reduce_backward(split(m, {4}), split(m, {4}), split(m, {0}), "max", split(m, {4}, at::kLong), {},
                                     0);
      },
      "got a sum of 4 for 0 rows");
  expect_same_error(
      [](const DeviceMesh& m) {
        const at::Tensor offsets = distribute_tensor(at::arange(5) * 2, m, {Replicate()});
        at::_segment_reduce_backward(split(m, {4}), split(m, {4}), split(m, {6}), "max", {}, offsets, 0);
      },
      "got up to 8 for 6 rows");
  expect_same_error(
      [](const DeviceMesh& m) {
        const at::Tensor offsets = distribute_tensor(at::arange(5) * 2, m, {Replicate()});
        at::segment_reduce(split(m, {6}), "max", {}, {}, offsets);
      },
      "got up to 8 for 6 rows");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::segment_reduce(split(m, {5, 6}), "sum", split(m, {1, 3}, at::kLong), {}, {}, 1);
      },
      "cannot have lengths of sizes [1, 3]");
}

TEST(Mistakes, NormParametersOfOtherSizesOrDtypesAreRefused) {
  const auto layer_norm = [](const Shape& bias, at::ScalarType weight) {
    return [=](const DeviceMesh& m) {
      const auto x = [&] { return split(m, {4, 8, 3}); };
      at::native_layer_norm_backward(x(), x(), {3}, split(m, {4, 8, 1}), split(m, {4, 8, 1}), split(m, {3}, weight),
                                     split(m, bias), {true, true, true});
    };
  };
  expect_same_error(layer_norm({0}, at::kFloat), "`bias` of sizes [0]");
  expect_same_error(layer_norm({3}, at::kLong), "expected scalar type Float but found Long");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::native_layer_norm_backward(split(m, {1, 2, 3}, at::kLong), split(m, {1, 2, 3}), {3}, split(m, {1, 2, 1}),
                                       split(m, {1, 2, 1}), {}, {}, {true, false, false});
      },
      "expected scalar type Float but found Long");
  const auto statistics = [](at::ScalarType mean, at::ScalarType rstd) {
    return [=](const DeviceMesh& m) {
      at::native_layer_norm_backward(split(m, {1, 2, 3}), split(m, {1, 2, 3}), {1, 2, 3}, split(m, {1, 1, 1}, mean),
                                     split(m, {1, 1, 1}, rstd), {}, {}, {true, false, false});
    };
  };
  expect_same_error(statistics(at::kLong, at::kFloat), "expected scalar type Float but found Long");
  expect_same_error(statistics(at::kFloat, at::kDouble), "expected scalar type Float but found Double");
  const auto batch_norm = [](std::int64_t variances, at::ScalarType type, const Shape& saved) {
    return [=](const DeviceMesh& m) {
      at::Tensor out = split(m, {0}), mean = split(m, saved), deviation = split(m, {0});
      const auto channels = [&](std::int64_t count, at::ScalarType of) { return split(m, {count}, of); };
      at::native_batch_norm_out(out, mean, deviation, split(m, {3, 2, 4}), channels(2, at::kFloat),
                                channels(2, at::kFloat), channels(2, type), channels(variances, at::kFloat), false, 0.1,
                                1e-5);
    };
  };
  expect_same_error(batch_norm(1, at::kFloat, {0}), "`running_var` of sizes [1]");
  expect_same_error(batch_norm(2, at::kLong, {0}), "found Long (`running_mean`)");
  expect_same_error(batch_norm(2, at::kFloat, {1, 4}), "`save_mean`: expected one dimension");
}

TEST(Mistakes, EmbeddingBagBackwardChecksIndices) {
  const auto gradient = [](std::int64_t bags, std::int64_t index, std::int64_t dim) {
    return [=](const DeviceMesh& m) {
      const auto list = [&](const at::Tensor& t) { return distribute_tensor(t, m, {Replicate()}); };
      const auto offsets = list(at::tensor({0, 3}, at::kLong)), none = list(at::zeros({0}, at::kLong));
      at::_embedding_bag_backward(split(m, {bags, 5}, at::kFloat, dim), list(at::full({5}, index, at::kLong)), offsets,
                                  none, list(at::tensor({3, 2}, at::kLong)), offsets, 10, false, 0, false, {}, -1);
    };
  };
  for (const std::int64_t dim : {0, 1}) {
    expect_same_error(gradient(0, 1, dim), "bag");
    expect_same_error(gradient(1, 1, dim), "bag");
    expect_same_error(gradient(2, 10, dim), "index");
  }
}

TEST(Mistakes, EmptyKernelsAndEmptyBatchNormsAreRefused) {
  expect_same_error(
      [](const DeviceMesh& m) {
        at::convolution(split(m, {1, 3, 4, 4}), split(m, {3, 3, 3, 0}), split(m, {3}), {2, 2}, {2, 2}, {1, 1}, true,
                        {1, 1}, 1);
      },
      "kernel size should be greater than zero");
  expect_same_error(
      [](const DeviceMesh& m) {
        at::native_batch_norm(split(m, {3, 1, 0, 2}), {}, {}, split(m, {1}), split(m, {1}), true, 0.1, 1e-5);
      },
      "at least one element");
}

TEST(Mistakes, LinearBackwardChecksTheGradient) {
  const auto gradient = [](const Shape& grad) {
    return [grad](const DeviceMesh& m) {
      at::linear_backward(split(m, {3, 3}), distribute_tensor(at::ones(grad), m, {Replicate()}), split(m, {3, 3}),
                          {true, true, true});
    };
  };
  expect_same_error(gradient({}), "without a dimension of features");
  expect_same_error(gradient({2, 3}), "(3x2 and 3x3)");  // error of ATen's matrix product
}

// An invalid target on one rank is reported to all ranks before any throws.
TEST(Mistakes, TargetOutOfBoundsIsOneErrorForSplitTargets) {
  for (const bool positions : {false, true}) {
    expect_same_error(
        [&](const DeviceMesh& m) {
          const Shape sizes = positions ? Shape{6, 2, 1, 2} : Shape{6, 2},
                      targets = positions ? Shape{6, 1, 2} : Shape{6};
          const at::Tensor wrong = at::zeros(targets, at::kLong);
          wrong.view({-1})[-1] = 7;
          at::cross_entropy_loss(split(m, sizes), distribute_tensor(wrong, m, {Shard(0)}));
        },
        "a target is out of bounds");
  }
}

TEST(Mistakes, TargetOutOfBoundsWithoutClasses) {
  const auto loss = [](std::int64_t target) {
    return [target](const DeviceMesh& m) {
      const at::Tensor targets = distribute_tensor(at::full({6}, target, at::kLong), m, {Shard(0)});
      at::nll_loss_forward(split(m, {6, 0}), targets, {}, at::Reduction::Mean, -100);
    };
  };
  expect_same_error(loss(0), "a target is out of bounds");
  expect_same_error(loss(-100), "no error");
}

TEST(Mistakes, IntegerGradientOfSoftmaxIsRefused) {
  expect_same_error(
      [](const DeviceMesh& m) {
        const auto x = [&] { return split(m, {3, 2}, at::kLong); };
        at::_softmax_backward_data(x(), split(m, {3, 2}), 0, at::kFloat);
      },
      "Long");
}

TEST(Mistakes, MismatchedTargetSizesAreRefused) {
  expect_same_error(
      [](const DeviceMesh& m) {
        at::nll_loss2d_forward(split(m, {4, 2, 1, 3}, at::kFloat, 3),
                               distribute_tensor(at::full({2, 1, 3}, 7, at::kLong), m, {Shard(0)}), {},
                               at::Reduction::Mean, -100);
      },
      "size mismatch (got input: [4, 2, 1, 3] , target: [2, 1, 3]");
}

TEST(Mistakes, PowerSumsOfComplexNumbersAreReal) {
  const at::Tensor x = at::randn({4, 3}, at::kComplexDouble);
  on_mesh({2}, [&](const DeviceMesh& m) {
    const auto sums = at::_foreach_powsum({distribute_tensor(x, m, {Shard(0)})}, 2);
    EXPECT_EQ(sums[0].scalar_type(), at::kDouble);
    expect_close(sums[0], at::_foreach_powsum({x}, 2)[0], "powsum");
  });
}

}  // namespace
}  // namespace dtensor::test
