// Registers the fake device with ATen. Include it in one translation unit of a program.
#pragma once

#include "other_device/fake_device.h"

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &dtensor::test::fake::memory)
C10_REGISTER_GUARD_IMPL(PrivateUse1, dtensor::test::fake::Guard)
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  namespace fake = dtensor::test::fake;
  m.impl("empty.memory_format", &fake::empty);
  m.impl("empty_strided", &fake::empty_strided);
  m.impl("resize_", &fake::resize_);
  m.impl("_copy_from", &fake::copy_from);
  m.impl("_copy_from_and_resize", &fake::copy_from_and_resize);
  m.impl("as_strided",
         static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, std::optional<std::int64_t>)>(
             &at::native::as_strided_tensorimpl));
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  // The composite kernel reads the ends of groups on the host; devices with grouped products have a kernel.
  m.impl("_grouped_mm", torch::CppFunction::makeFromBoxedFunction<&fake::on_cpu>());
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&fake::of_one_type>());
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&dtensor::test::fake::on_cpu>());
}
