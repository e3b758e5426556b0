// SPDX-License-Identifier: MIT
pragma solidity ^0.8.20;

/// A fungible token (ERC-20). Who may do what is left out: everybody may mint, and burn and move what others have.
contract Coin {
    string public constant name = "Coin of the tests";
    string public constant symbol = "COIN";
    uint8 public constant decimals = 18;

    uint256 public totalSupply;
    mapping(address => uint256) public balanceOf;
    mapping(address => mapping(address => uint256)) public allowance;

    event Transfer(address indexed from, address indexed to, uint256 value);
    event Approval(address indexed owner, address indexed spender, uint256 value);

    function transfer(address to, uint256 value) external returns (bool) {
        move(msg.sender, to, value);
        return true;
    }

    function transferFrom(address from, address to, uint256 value) external returns (bool) {
        move(from, to, value);
        return true;
    }

    function approve(address spender, uint256 value) external returns (bool) {
        allowance[msg.sender][spender] = value;
        emit Approval(msg.sender, spender, value);
        return true;
    }

    function mint(address to, uint256 value) external {
        move(address(0), to, value);
    }

    function burn(address from, uint256 value) external {
        move(from, address(0), value);
    }

    /// `count` transfers of one coin each, from the caller to accounts with the numbers from `first` on. What the
    /// caller lacks is minted first.
    function spread(uint256 first, uint256 count) external {
        if (balanceOf[msg.sender] < count) move(address(0), msg.sender, count);
        for (uint256 i = 0; i < count; i++) move(msg.sender, address(uint160(first + i)), 1);
    }

    /// `count` mints, burns, transfers and transfers to oneself among `holders` accounts, numbered from 1, as `seed`
    /// draws them.
    function scatter(uint256 count, uint256 holders, uint256 seed) external {
        for (uint256 i = 0; i < count; i++) {
            uint256 r = uint256(keccak256(abi.encode(seed, i)));
            address from = address(uint160(1 + (r >> 8) % holders));
            address to = address(uint160(1 + (r >> 72) % holders));
            uint256 held = balanceOf[from];
            if (held == 0 || r % 16 == 0) move(address(0), from, 1 + (r >> 136));
            else if (r % 16 == 1) move(from, address(0), (r >> 136) % (held + 1));
            else move(from, to, (r >> 136) % (held + 1));
        }
    }

    function move(address from, address to, uint256 value) private {
        if (from == address(0)) totalSupply += value;
        else balanceOf[from] -= value;
        if (to == address(0)) totalSupply -= value;
        else balanceOf[to] += value;
        emit Transfer(from, to, value);
    }
}
