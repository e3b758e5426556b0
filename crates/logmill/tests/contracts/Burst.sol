// SPDX-License-Identifier: MIT
pragma solidity ^0.8.20;

/// A token, and bursts of logs of every shape: none to four topics, with and without data, many to a transaction.
contract Burst {
    event Transfer(address indexed from, address indexed to, uint256 value);
    event Approval(address indexed owner, address indexed spender, uint256 value);
    event Tagged(uint256 indexed id, bytes32 indexed tag, address indexed who, bytes data);
    event Plain(uint256 id);
    event One(uint256 indexed id, string note);
    event Silent() anonymous;
    event Loud(uint256 indexed a, uint256 indexed b, uint256 indexed c, uint256 indexed d, bytes data) anonymous;

    mapping(address => uint256) public balanceOf;
    uint256 public count;

    /// A transfer from the caller, who needs no balance: this is about logs.
    function transfer(address to, uint256 value) external returns (bool) {
        unchecked {
            balanceOf[msg.sender] -= value;
            balanceOf[to] += value;
        }
        emit Transfer(msg.sender, to, value);
        return true;
    }

    /// `n` logs, of kinds and with values that `seed` draws.
    function burst(uint256 n, uint256 seed) external {
        for (uint256 i = 0; i < n; i++) {
            uint256 r = uint256(keccak256(abi.encode(seed, i)));
            address who = address(uint160(0xa0 + (r >> 8) % 23));
            address to = address(uint160(0xb0 + (r >> 16) % 7));
            uint256 kind = r % 8;
            if (kind < 2) emit Transfer(who, to, r >> 200);
            else if (kind == 2) emit Approval(who, to, i);
            else if (kind == 3) emit Tagged(i % 5, bytes32((r >> 24) % 11), who, new bytes((r >> 32) % 200));
            else if (kind == 4) emit Plain(i);
            else if (kind == 5) emit One((r >> 24) % 13, "one");
            else if (kind == 6) emit Silent();
            else emit Loud((r >> 24) % 3, (r >> 32) % 5, i % 7, (r >> 40) % 2, new bytes(r % 70));
        }
        count += n;
    }

    /// A transaction that fails after it has logged: its logs are none.
    function fail() external {
        emit Plain(1);
        revert("no");
    }
}
