// SPDX-License-Identifier: MIT
pragma solidity ^0.8.20;

interface IToken {
    function transferFrom(address from, address to, uint256 value) external returns (bool);
}

/// Splits a fee among its recipients at once. The zero address is the native asset.
contract FeeForwarder {
    struct FeeDistribution {
        address recipient;
        uint256 amount;
    }

    event FeesForwarded(address indexed token, FeeDistribution[] distributions);

    function forwardERC20Fees(address token, FeeDistribution[] calldata distributions) external {
        for (uint256 i = 0; i < distributions.length; i++) {
            IToken(token).transferFrom(msg.sender, distributions[i].recipient, distributions[i].amount);
        }
        emit FeesForwarded(token, distributions);
    }

    function forwardNativeFees(FeeDistribution[] calldata distributions) external payable {
        for (uint256 i = 0; i < distributions.length; i++) {
            (bool paid,) = distributions[i].recipient.call{value: distributions[i].amount}("");
            require(paid, "not paid");
        }
        emit FeesForwarded(address(0), distributions);
    }

    /// `count` fees among up to four of `recipients` accounts, numbered from 1, as `seed` draws them. Nothing is paid:
    /// this is about logs.
    function scatter(uint256 count, uint256 recipients, uint256 seed) external {
        for (uint256 i = 0; i < count; i++) {
            uint256 r = uint256(keccak256(abi.encode(seed, i)));
            FeeDistribution[] memory parts = new FeeDistribution[](r % 5);
            for (uint256 j = 0; j < parts.length; j++) {
                address recipient = address(uint160(1 + (r >> (8 + 16 * j)) % recipients));
                parts[j] = FeeDistribution(recipient, (r >> (80 + 16 * j)) % 1 ether);
            }
            emit FeesForwarded(address(uint160((r >> 72) % 4)), parts);
        }
    }
}
