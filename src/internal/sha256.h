// SHA-256 by OpenSSL's libcrypto, which is loaded on first use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dtensor {

// Throws CommError if libcrypto cannot be loaded.
std::array<std::uint8_t, 32> sha256(const void* data, std::size_t bytes);

}  // namespace dtensor
